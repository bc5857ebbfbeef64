#!/usr/bin/env bash
# A real SLURM of one node for the tests beside this file: tests/slurm/start.sh [CPUs] [GPUs], as root on Debian.
# Everything of it lies in one folder below /run: configuration, keys, sockets, logs, states. No file in /etc is written,
# its ports are its own, and on a machine that belongs to a SLURM already nothing is done.
set -euo pipefail
cpus=${1:-2} gpus=${2:-2}
folder=/run/softmax-bottleneck-slurm
place=/run/slurm/conf # where programs without SLURM_CONF look: the executor plugin clears that inside of jobs
host=$(hostname -s)
fail() {
  echo "tests/slurm/start.sh: $*" >&2
  exit 1
}
[ "$(id -u)" = 0 ] || fail "needs root (it starts slurmctld, slurmd and munged)"
"$(dirname "$0")/stop.sh" # a former one, half started or left over
for one in /etc/slurm/slurm.conf "$place"; do
  if [ -e "$one" ]; then fail "$one is there: this machine belongs to a SLURM, which is left alone"; fi
done
if ! { command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch; } >/dev/null; then
  command -v apt-get >/dev/null || fail "slurmctld, slurmd and munged are not installed, and there is no apt-get"
  apt-get update -qq || fail "apt-get update failed: no network?"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge \
    >/dev/null || fail "the packages slurmctld, slurmd, slurm-client and munge cannot be installed"
fi
mkdir -p -m 755 "$folder"/state "$folder"/spool "$(dirname "$place")"
ln -s "$folder" "$place"
install -d -m 700 -o munge -g munge "$folder"/munge
install -d -m 755 -o munge -g munge "$folder"/socket
dd if=/dev/urandom of="$folder/munge/key" bs=1 count=1024 status=none
chown munge: "$folder/munge/key"
chmod 400 "$folder/munge/key"
setpriv --reuid=munge --regid=munge --clear-groups munged --key-file="$folder/munge/key" \
  --socket="$folder/socket/munge" --pid-file="$folder/socket/munged.pid" --seed-file="$folder/munge/seed" \
  --log-file="$folder/munge/log"
for number in $(seq 0 $((gpus - 1))); do # what a job with gpu=1 is given; no program looks into it
  mknod "$folder/gpu$number" c 1 3 2>/dev/null || ln -sf /dev/null "$folder/gpu$number"
done
echo "NodeName=$host Name=gpu File=$folder/gpu[0-$((gpus - 1))]" >"$folder/gres.conf"
cat >"$folder/slurm.conf" <<CONF
ClusterName=softmax-bottleneck
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/socket/munge
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/finished-jobs.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=2
MinJobAge=600
KillWait=30
ReturnToService=2
MpiDefault=none
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=65536 Gres=gpu:$gpus State=UNKNOWN
PartitionName=cpu Nodes=$host Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=$host MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$folder/slurm.conf"
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for _ in $(seq 60); do
  if timeout 2 sinfo --noheader --format=%T 2>/dev/null | grep -qE 'idle|mixed|allocated'; then
    realpath "$(dirname "$0")" >"$folder/ready" # what the tests look for: the SLURM of this clone
    echo "SLURM of one node is up: export SLURM_CONF=$SLURM_CONF"
    exit 0
  fi
  sleep 0.25
done
tail -n 20 "$folder/slurmctld.log" "$folder/slurmd.log" >&2
fail "the node did not come up within 15 s"
