#!/bin/sh
# Writes the thermal design power of each processor package of the node on which this script runs, as the kernel has it in
# powercap (the largest power of the first constraint). node_exporter has a collector for the energy, and none for this.
#
#   package-tdp.sh [DIRECTORY [SYS]]
#   ssh NODE sudo sh -s [DIRECTORY [SYS]] < package-tdp.sh
#
# DIRECTORY is that of node_exporter's --collector.textfile.directory, SYS that of its --path.sysfs.
set -eu
directory=${1:-/tmp/node-metrics}
powercap=${2:-/sys}/class/powercap
[ -d "$directory" ] || { echo "package-tdp.sh: there is no directory $directory; node_exporter must read it" >&2; exit 2; }
file="$directory/.tdp.$$"
trap 'rm -f "$file"' EXIT
echo '# TYPE node_package_tdp_watts gauge' > "$file"
for zone in "$powercap"/intel-rapl:*; do
  [ -f "$zone/name" ] && [ -f "$zone/constraint_0_max_power_uw" ] || continue
  name=$(cat "$zone/name")
  microwatts=$(cat "$zone/constraint_0_max_power_uw")
  case $name in
    package-*) [ "$microwatts" = 0 ] || echo "node_package_tdp_watts{index=\"${name#package-}\"} ${microwatts}e-6" >> "$file" ;;
  esac
done
grep -q '^node_package' "$file" || { echo "package-tdp.sh: no package with a largest power in $powercap" >&2; exit 2; }
# Renamed when complete: a scrape never reads half a file. Only files *.prom are read.
mv "$file" "$directory/tdp.prom"
