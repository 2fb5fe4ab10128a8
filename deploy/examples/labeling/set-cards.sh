#!/bin/sh
# Sets the values of the two cards of the node on which this script runs. The textfile collector of node_exporter reads the
# file with its next scrape.
#
#   set-cards.sh BUSY0 BUSY1 FREE0 FREE1 [DIRECTORY]
#   ssh NODE sudo sh -s BUSY0 BUSY1 FREE0 FREE1 [DIRECTORY] < set-cards.sh
#
# DIRECTORY is that of node_exporter's --collector.textfile.directory.
set -eu
[ $# -ge 4 ] || { echo "usage: set-cards.sh BUSY0 BUSY1 FREE0 FREE1 [DIRECTORY]" >&2; exit 2; }
directory=${5:-/tmp/node-metrics}
[ -d "$directory" ] || { echo "set-cards.sh: there is no directory $directory; node_exporter must read it" >&2; exit 2; }
for other in "$directory"/*.prom; do   # such as metrics.prom of the original
  [ "$other" = "$directory/cards.prom" ] || ! grep -qs '^node_metric_card[01][ {]' "$other" ||
    { echo "set-cards.sh: $other has node_metric_card…, too, and node_exporter serves one of the two: delete it" >&2; exit 2; }
done
# Renamed when complete: a scrape never reads half a file. Only files *.prom are read.
cat > "$directory/.cards.$$" <<EOF
# TYPE node_metric_card0 gauge
node_metric_card0 $1
# TYPE node_metric_card1 gauge
node_metric_card1 $2
# TYPE node_metric_card0_free gauge
node_metric_card0_free $3
# TYPE node_metric_card1_free gauge
node_metric_card1_free $4
EOF
mv "$directory/.cards.$$" "$directory/cards.prom"
