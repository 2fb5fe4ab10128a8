#!/bin/sh
# Sets the health of the node on which this script runs: 0, 1 or 2 (policy.yaml). The textfile collector of node_exporter
# reads the file with its next scrape.
#
#   set-health.sh VALUE [DIRECTORY]
#   ssh NODE sudo sh -s VALUE [DIRECTORY] < set-health.sh
#
# DIRECTORY is that of node_exporter's --collector.textfile.directory.
set -eu
value=${1:?usage: set-health.sh VALUE [DIRECTORY]}
directory=${2:-/tmp/node-metrics}
case $value in
  0 | 1 | 2) ;;
  *) echo "set-health.sh: the value is 0, 1 or 2, not '$value'" >&2; exit 2 ;;
esac
[ -d "$directory" ] || { echo "set-health.sh: there is no directory $directory; node_exporter must read it" >&2; exit 2; }
for other in "$directory"/*.prom; do   # such as text.prom of the original
  [ "$other" = "$directory/health.prom" ] || ! grep -qs '^node_health_metric[ {]' "$other" ||
    { echo "set-health.sh: $other has node_health_metric, too, and node_exporter serves one of the two: delete it" >&2; exit 2; }
done
# Renamed when complete: a scrape never reads half a file. Only files *.prom are read.
printf '# TYPE node_health_metric gauge\nnode_health_metric %s\n' "$value" > "$directory/.health.$$"
mv "$directory/.health.$$" "$directory/health.prom"
