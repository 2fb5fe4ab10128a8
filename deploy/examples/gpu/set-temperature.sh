#!/bin/sh
# Sets the temperatures of the two cards of the node on which this script runs. The textfile collector of node_exporter reads the
# file with its next scrape.
#
#   set-temperature.sh CARD0 CARD1 [DIRECTORY]
#   ssh NODE sudo sh -s CARD0 CARD1 [DIRECTORY] < set-temperature.sh
#
# DIRECTORY is that of node_exporter's --collector.textfile.directory.
set -eu
[ $# -ge 2 ] || { echo "usage: set-temperature.sh CARD0 CARD1 [DIRECTORY]" >&2; exit 2; }
directory=${3:-/tmp/node-metrics}
[ -d "$directory" ] || { echo "set-temperature.sh: there is no directory $directory; node_exporter must read it" >&2; exit 2; }
# Renamed when complete: a scrape never reads half a file. Only files *.prom are read.
cat > "$directory/.gpu.$$" <<END
# TYPE node_gpu_card0_temperature gauge
node_gpu_card0_temperature $1
# TYPE node_gpu_card1_temperature gauge
node_gpu_card1_temperature $2
END
mv "$directory/.gpu.$$" "$directory/gpu.prom"
