#!/bin/bash
# Records priorities-*.txt: what priority/multifactor gives a queue of several users, accounts, partitions and QOS.
#
#   docker-slurm-testbed/testbed up --slurm 24.11 --project prio      # likewise 22.05 and 26.05
#   docker cp tests/recorded/priorities.sh prio_ctl_1:/root/ && docker exec prio_ctl_1 bash /root/priorities.sh
#   docker cp prio_ctl_1:/root/recorded/. tests/recorded/24.11/
#   docker-slurm-testbed/testbed down --project prio
set -e
export SLURM_TIME_FORMAT=%s LC_ALL=C TZ=UTC
mkdir -p /root/recorded

configured() { # the site's own weights, faster; further lines of slurm.conf as arguments
  sed -i '/^PriorityFlags=/d;/^PriorityFavorSmall=/d;/^PriorityDecayHalfLife=/d;/^PriorityMaxAge=/d' /etc/slurm/slurm.conf
  printf '%s\n' PriorityDecayHalfLife=0-00:10:00 PriorityMaxAge=0-00:30:00 "$@" >> /etc/slurm/slurm.conf
  scontrol reconfigure
  scontrol update PartitionName=share PriorityJobFactor=5
  scontrol update PartitionName=k80 PriorityJobFactor=10
}

record() {
  {
    echo "## sprio"
    sprio -h -o '%i|%r|%u|%o|%n|%Y|%A|%a|%F|%f|%J|%j|%P|%p|%Q|%q|%N|%S|%T|%t'
    echo "## squeue"
    squeue -h -O 'JobID:|,StateCompact:|,UserName:|,Account:|,Partition:|,QOS:|,SubmitTime:|,EligibleTime:|,AccrueTime:|,StartTime:|,TimeLimit:|,NumNodes:|,NumCPUs:|,tres-alloc:|,Nice:|,PriorityLong:'
    echo "## sshare"
    sshare -a -l -P -o Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS
    echo "## priority"
    scontrol show config | grep -E '^Priority|^FairShare'
  } > "/root/recorded/priorities-$1.txt"
}

submit() { runuser -u "$1" -- sbatch -Q -D /tmp -o /dev/null "${@:2}" --wrap 'sleep 3000'; }

configured
sacctmgr -iQ modify account physics set fairshare=30
sacctmgr -iQ modify account biology set fairshare=10
sacctmgr -iQ modify user alice where account=physics set fairshare=3
# Two accounts that tie: without shares, both are worth nothing.
sacctmgr -iQ add account z1 fairshare=0
sacctmgr -iQ add account z2 fairshare=0
sacctmgr -iQ add account lab parent=physics fairshare=2
sacctmgr -iQ add user carol account=z1
sacctmgr -iQ add user dave account=z1
sacctmgr -iQ add user alice account=z2
sacctmgr -iQ add user dave account=lab
sacctmgr -iQ modify user carol dave where account=z1 set qos=normal,high,low

# What runs fills every GPU and uses up fair share.
submit alice -A physics -w p100-1 -c 56 --gres=gpu:p100:4 -t 60 --mem=1000
submit bob -A physics -w p100-2 -c 40 --gres=gpu:p100:4 -t 60 --mem=1000
submit carol -A z1 -w k80-1 -c 28 --gres=gpu:k80:2 -t 60 --mem=1000
submit alice -A z2 -w k80-2 -c 28 --gres=gpu:k80:2 -t 60 --mem=1000
submit dave -A lab -w m40-1 -c 28 --gres=gpu:m40:1 -t 60 --mem=1000
submit carol -A biology -w p100-2 -c 8 -t 60 --mem=1000
sleep 5
for cpus in 1 3 8; do
  submit alice -A physics -c $cpus --gres=gpu:1 -t 10 --mem=2000
  submit bob -A physics -c $cpus -n 2 --gres=gpu:p100:2 -t 20 --mem=20000 -p share
  submit carol -A z1 -c $cpus --gres=gpu:2 -t 30 --mem=3000 -q high
  submit carol -A biology -c $cpus --gres=gpu:2 -t 30 --mem=3000 -q low
  submit dave -A z1 -c $cpus --gres=gpu:1 -t 30 --mem=100G -q low
  submit dave -A lab -c $cpus --gres=gpu:1 -t 30 --mem=1000 --nice=77
  submit alice -A z2 -c $cpus --gres=gpu:k80:1 -t 40 --mem=1000 -p k80
  submit dave -A biology -N 2 -c $cpus --gres=gpu:p100:3 -t 50 --mem=5000
  submit alice -A physics -N 4 -n 8 -c $cpus --gres=gpu:1 -t 5 --mem=9000 -p force
  submit bob -A capped -c $cpus --gres=gpu:1 -t 60 --mem=1500
done
submit bob -A physics -n 17 -c 3 --gres=gpu:p100:4 -t 60 --mem-per-cpu=100
submit bob -A physics -p gpu,k80,share -c 2 --gres=gpu:1 -t 30 --mem=1G
submit bob -A physics --array=1-5 -c 2 --gres=gpu:1 -t 30 --mem=1G
scontrol update JobId="$(squeue -h -t PD -o %i | sort -n | head -1)" SiteFactor=-123

# Two calculations later, and three minutes after that.
sleep 125; record 1; sleep 180; record 2
configured PriorityFavorSmall=YES; sleep 95; record 4
configured PriorityFlags=SMALL_RELATIVE_TO_TIME; sleep 95; record 5
configured PriorityFavorSmall=YES PriorityFlags=SMALL_RELATIVE_TO_TIME; sleep 95; record 6
