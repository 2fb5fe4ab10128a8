{{- /*
What is true of each process, whatever the values say. `account`: the file in files/rbac; `port`: of the scheduler;
`beside`: runs beside `all`, which does not have it.
`python release/chart_workers.py` writes this file from workers/, since Helm reads no other folder.
*/}}
{{- define "tas.processes" -}}
all: {account: all, kubeconfig: true, port: 9001, tls: true, budget: true}
materialize: {}
windows: {}
watch: {account: watch}
evaluate: {}
extender: {port: 9001, tls: true, budget: true}
labels: {account: labels}
marks: {account: marks}
resources: {account: resources}
collect: {account: collect}
events: {}
notify: {account: notify, kubeconfig: true}
inventory: {account: inventory, beside: true}
gpu: {account: gpu, port: 9020, tls: true, budget: true, beside: true}
evictions: {account: evictions, beside: true}
agents: {port: 9030, tls: true, budget: true, beside: true}
keeper: {}
{{- end }}
