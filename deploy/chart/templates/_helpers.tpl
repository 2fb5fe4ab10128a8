{{- /* `mode` of the values; if it is empty, an upgrade keeps separate processes, which were the default. */}}
{{- define "tas.mode" -}}
{{- $root := . }}
{{- $found := "all" }}
{{- if and .Release.IsUpgrade (not .Values.mode) }}
{{- range list "telemetry-aware-scheduling" "tas-materialize" "tas-evaluate" "tas-watch" "tas-labels" "tas-collect" }}
{{- $deployment := lookup "apps/v1" "Deployment" $root.Release.Namespace . | default dict }}
{{- if ne "all" (dig "metadata" "labels" "app.kubernetes.io/component" "all" $deployment) }}
{{- $found = "separate" }}
{{- end }}
{{- end }}
{{- end }}
{{- .Values.mode | default $found }}
{{- end }}

{{- /* The NATS servers that run before an upgrade; 0 if there are none. */}}
{{- define "tas.runningServers" -}}
{{- $set := dict }}
{{- if .Release.IsUpgrade }}
{{- $set = lookup "apps/v1" "StatefulSet" .Release.Namespace "tas-nats" | default dict }}
{{- end }}
{{- dig "spec" "replicas" 0 $set | int }}
{{- end }}

{{- define "tas.servers" -}}
{{- .Values.bus.servers.replicas | int | default (include "tas.runningServers" . | int) | default 1 }}
{{- end }}

{{- /* The class of all pods; empty: none. A release of before `priorityClass` may be upgraded with its own values. */}}
{{- define "tas.priorityClass" -}}
{{- $own := ternary "tas-on-nats" "" (dig "create" false (.Values.priorityClass | default dict)) }}
{{- .Values.priorityClassName | default $own }}
{{- end }}

{{- /* The processes that run, as a list in YAML. */}}
{{- define "tas.enabled" -}}
{{- $root := . }}
{{- $mode := include "tas.mode" . }}
{{- range $name, $fixed := include "tas.processes" . | fromYaml }}
{{- $enabled := (get $root.Values.processes $name).enabled }}
{{- if eq $name "all" }}
{{- $enabled = eq $mode "all" }}
{{- else if eq $name "keeper" }}
{{- $enabled = and $root.Values.bus.credentials (eq $mode "separate") }}
{{- else if and (eq $mode "all") (not $fixed.beside) }}
{{- $enabled = false }}
{{- end }}
{{- if $enabled }}
- {{ $name }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
The name of a Deployment: the separate extender has that of the original. That of mode all has another one: the selector of a Deployment
cannot change, and so `mode` can.
*/}}
{{- define "tas.deployment" -}}
{{- if eq . "extender" }}telemetry-aware-scheduling{{ else }}tas-{{ . }}{{ end }}
{{- end }}

{{- define "tas.labels" -}}
app.kubernetes.io/name: tas-on-nats
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tas.bus" -}}
{{- $scheme := ternary "tls" "nats" (ne .Values.bus.tls.secret "") }}
{{- .Values.bus.url | default (printf "%s://tas-nats.%s.svc:4222" $scheme .Release.Namespace) }}
{{- end }}

{{- /* The addresses of the servers for each other: a list in the configuration language of NATS. */}}
{{- define "tas.routes" -}}
{{- $user := ternary "tas:$(CLUSTER_PASSWORD)@" "" .Values.bus.credentials }}
{{- $routes := list }}
{{- range $number := until (include "tas.servers" . | int) }}
{{- $routes = append $routes (printf "nats://%stas-nats-%d.tas-nats-servers.%s.svc:6222" $user $number $.Release.Namespace) }}
{{- end }}
{{- toJson $routes }}
{{- end }}

{{- define "tas.replicas" -}}
{{- if .Values.bus.url }}{{ .Values.bus.copies }}{{ else }}{{ include "tas.servers" . }}{{ end }}
{{- end }}

{{- /* How many pods of a workload may be away. One that is never ready must not stop a drain for ever; Kubernetes 1.27 or newer. */}}
{{- define "tas.budget" -}}
maxUnavailable: 1
{{- if semverCompare ">=1.27.0-0" .Capabilities.KubeVersion.Version }}
unhealthyPodEvictionPolicy: AlwaysAllow
{{- end }}
{{- end }}

{{- /* The security settings of each container. */}}
{{- define "tas.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "tas.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* A file with roles of deploy/rbac, for the namespace of the release. `metrics` replaces those of custom metrics. */}}
{{- define "tas.rbac" -}}
{{- $namespace := .root.Release.Namespace }}
{{- $metrics := .root.Values.collect.metrics }}
{{- range splitList "\n---\n" (.root.Files.Get (printf "files/rbac/%s.yaml" .file)) }}
{{- $object := fromYaml . }}
{{- if eq (dig "metadata" "namespace" "" $object) "telemetry-aware-scheduling" }}
{{- $_ := set $object.metadata "namespace" $namespace }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "namespace" $namespace }}
{{- end }}
{{- if $metrics }}
{{- range $object.rules }}
{{- if has "custom.metrics.k8s.io" .apiGroups }}
{{- $resources := list }}
{{- range $metrics }}{{ $resources = append $resources (printf "nodes/%s" .) }}{{ end }}
{{- $_ := set . "resources" $resources }}
{{- end }}
{{- end }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

{{- /* A file of deploy/alerts, with the page of this installation in each `runbook_url`; without a page no link. */}}
{{- define "tas.alerts" -}}
{{- $rules := .root.Files.Get (printf "files/alerts/%s" .file) }}
{{- with .root.Values.prometheus.runbookUrl }}
{{- $rules | replace "https://tas-on-nats.example/docs/operations.md" . }}
{{- else }}
{{- regexReplaceAll "(?m)^ +runbook_url: .*\n?" $rules "" }}
{{- end }}
{{- end }}

{{- /* Three quarters of the volume of a NATS server, in MiB. */}}
{{- define "tas.storeMebibytes" -}}
{{- $storage := .Values.bus.servers.storage }}
{{- mul (regexFind "^[0-9]+" $storage) (ternary 1024 1 (hasSuffix "Ti" $storage)) 768 }}
{{- end }}

{{- /*
90 % of the limit of memory of a NATS server, as GOMEMLIMIT has it: nearer to its limit Go collects garbage more often, and Kubernetes kills
at the limit. Empty without a limit.
*/}}
{{- define "tas.goMemory" -}}
{{- $limits := (.Values.bus.servers.resources | default dict).limits | default dict }}
{{- with $limits.memory }}
{{- $text := ternary (int64 .) . (kindIs "float64" .) | toString }}
{{- $number := regexFind "^[0-9]*[.]?[0-9]*([eE][+-]?[0-9]+)?" $text }}
{{- $unit := trimPrefix $number $text }}
{{- $bytesOf := dict "" 1 "m" 0.001 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- if not (and $number (hasKey $bytesOf $unit)) }}
{{- fail (printf "bus.servers.resources.limits.memory = %s: must be a quantity of Kubernetes, such as 1Gi" $text) }}
{{- end }}
{{- $bytes := mulf (float64 $number) (get $bytesOf $unit) 0.9 | floor | int64 }}
{{- if $bytes }}{{ $bytes }}B{{ end }}
{{- end }}
{{- end }}

{{- /* Fails for values that no schema can refuse: those that contradict others, or that nothing would use. */}}
{{- define "tas.check" -}}
{{- $values := .Values }}
{{- $processes := $values.processes }}
{{- $mode := include "tas.mode" . }}
{{- $running := include "tas.runningServers" . | int }}
{{- $collects := or (eq $mode "all") $processes.collect.enabled }}
{{- $notifies := or (eq $mode "all") $processes.notify.enabled }}
{{- if and $values.admission.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "admission.enabled = true: needs Kubernetes 1.30, and this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (not $values.bus.url) (lt (int (include "tas.storeMebibytes" .)) 6144) }}
{{- fail (printf "bus.servers.storage = %s: must be at least 8Gi: the streams and buckets may have 6 GiB, and a quarter stays free" $values.bus.servers.storage) }}
{{- end }}
{{- if and .Release.IsUpgrade (not $values.bus.url) (not (int $values.bus.servers.replicas)) }}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace "tas-nats" | default dict }}
{{- if and $set (eq 0 $running) }}
{{- fail "bus.servers.replicas = 0: tas-nats is scaled to 0, so nobody knows for how many servers its streams are: set 1 or 3, or scale tas-nats up first" }}
{{- end }}
{{- end }}
{{- if and (not $values.bus.url) $running (ne (include "tas.servers" . | int) $running) }}
{{- fail (printf "bus.servers.replicas = %d: %d run, and streams of %d do not work with another number: set bus.servers.replicas = %d, or begin anew (docs/how-to/grow.md#servers)" (int $values.bus.servers.replicas) $running $running $running) }}
{{- end }}
{{- if and (not $values.bus.url) $values.bus.tls.serverSecret (not $values.bus.tls.secret) }}
{{- fail "bus.tls.serverSecret: needs bus.tls.secret, by which the processes know the servers: without it the bus has no TLS" }}
{{- end }}
{{- if and $values.autoscaling.enabled (eq $mode "all") }}
{{- fail "autoscaling.enabled = true: needs mode = separate, since materialize has no Deployment in mode all" }}
{{- end }}
{{- if and $values.autoscaling.enabled (not $processes.materialize.enabled) }}
{{- fail "autoscaling.enabled = true: needs processes.materialize.enabled" }}
{{- end }}
{{- $least := int $processes.materialize.replicas }}
{{- if and $values.autoscaling.enabled (or (lt $least 1) (gt $least (int $values.autoscaling.maxReplicas))) }}
{{- fail (printf "processes.materialize.replicas = %d: must be from 1 to autoscaling.maxReplicas = %d" $least (int $values.autoscaling.maxReplicas)) }}
{{- end }}
{{- range list "gpu" "evictions" }}
{{- if and (get $processes .).enabled (not $processes.inventory.enabled) (not $values.bus.url) }}
{{- fail (printf "processes.%s.enabled = true: needs processes.inventory.enabled, which says who has which card: %s would never be ready" . .) }}
{{- end }}
{{- end }}
{{- if and $values.agents.config (not $processes.agents.enabled) }}
{{- fail "agents.config: needs processes.agents.enabled" }}
{{- end }}
{{- if and $values.notify.sinks (not $notifies) }}
{{- fail "notify.sinks: needs processes.notify.enabled" }}
{{- end }}
{{- if and (or $values.collect.config $values.collect.remoteWritePort) (not $collects) }}
{{- fail "collect.config and collect.remoteWritePort: need processes.collect.enabled" }}
{{- end }}
{{- range list "collect" "notify" }}
{{- $file := ternary "config" "sinks" (eq . "collect") }}
{{- if and (get $values .).secret (not (get (get $values .) $file)) }}
{{- fail (printf "%s.secret: needs %s.%s, which names its files" . . $file) }}
{{- end }}
{{- end }}
{{- range $place, $text := dict "collect.config" $values.collect.config "notify.sinks" $values.notify.sinks "agents.config" $values.agents.config }}
{{- with get (fromYaml $text) "Error" }}
{{- fail (printf "%s: no YAML: %s" $place .) }}
{{- end }}
{{- end }}
{{- $listens := false }}
{{- range $values.collect.sources }}
{{- if regexMatch "^([^:=]+:)?remote-write=" . }}
{{- $listens = true }}
{{- if not (hasSuffix (printf ":%d" (int $values.collect.remoteWritePort)) .) }}
{{- fail (printf "collect.sources: %s: collect.remoteWritePort = %d: must be its port" . (int $values.collect.remoteWritePort)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $values.collect.remoteWritePort (not $listens) }}
{{- fail (printf "collect.remoteWritePort = %d: needs a source of the kind remote-write in collect.sources" (int $values.collect.remoteWritePort)) }}
{{- end }}
{{- range list "schedulers" "metrics" "remoteWrite" }}
{{- if and (get $values.networkPolicy .) (not $values.networkPolicy.enabled) }}
{{- fail (printf "networkPolicy.%s: needs networkPolicy.enabled" .) }}
{{- end }}
{{- end }}
{{- if and $values.networkPolicy.remoteWrite (not $values.collect.remoteWritePort) }}
{{- fail "networkPolicy.remoteWrite: needs collect.remoteWritePort" }}
{{- end }}
{{- if and $values.prometheus.labels (not (or $values.prometheus.podMonitor $values.prometheus.rules $values.prometheus.schedulerRules)) }}
{{- fail "prometheus.labels: needs prometheus.podMonitor, prometheus.rules or prometheus.schedulerRules" }}
{{- end }}
{{- $runs := include "tas.enabled" . | fromYamlArray }}
{{- range $name, $process := $processes }}
{{- if and $process.args (not (has $name $runs)) }}
{{- fail (printf "processes.%s.args: nothing runs %s: see mode and processes.%s.enabled" $name $name $name) }}
{{- end }}
{{- end }}
{{- end }}
