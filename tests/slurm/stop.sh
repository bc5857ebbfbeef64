#!/usr/bin/env bash
# Ends what tests/slurm/start.sh started, jobs included, and removes its folder.
set -uo pipefail
folder=/run/softmax-bottleneck-slurm
[ -d "$folder" ] || exit 0
export SLURM_CONF="$folder/slurm.conf"
if [ -e "$folder/ready" ]; then
  timeout 10 scancel --user="$(id -un)" 2>/dev/null
  for _ in $(seq 80); do # slurmd ends their processes, so it goes after them
    [ -z "$(timeout 5 squeue --noheader 2>/dev/null)" ] && break
    sleep 0.5
  done
fi
alive() { # a process that has ended but was not waited for is no longer one
  [ -s "$1" ] && grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$(cat "$1" 2>/dev/null)/status"
}
for name in slurmd slurmctld socket/munged; do
  pid=$folder/$name.pid
  alive "$pid" && kill "$(cat "$pid" 2>/dev/null)" 2>/dev/null
  for _ in $(seq 40); do
    alive "$pid" || break
    sleep 0.25
  done
  alive "$pid" && kill -KILL "$(cat "$pid")"
done
if [ "$(readlink /run/slurm/conf)" = "$folder" ]; then rm /run/slurm/conf; fi
rm -rf "$folder"
