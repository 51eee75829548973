#!/bin/bash
#SBATCH --job-name=impala-pong-3
#SBATCH --output="/shared/my runs/pong 3/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --chdir=/home/me/impala_tf
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive --requeue
#SBATCH --time=12:00:00 --partition=long
#SBATCH --gpus-per-node=1
#SBATCH hetjob
#SBATCH --nodes=3 --ntasks-per-node=1 --exclusive --requeue
#SBATCH --time=12:00:00 --partition=long

# Comes two minutes before the time is over: the learners write a checkpoint, and all nodes leave.
late= interrupted=
trap 'late=1 interrupted=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1

run=(.venv/bin/python run.py '--logdir=/shared/my runs/pong 3' --seed=3 '--level_kwargs={"a": 1}' --join --num_learners=2)
on_every_node=(--cpu-bind=none --wait=0 --kill-on-bad-exit=0)
srun --het-group=1 "${on_every_node[@]}" "${run[@]}" &
actors=$!
srun --het-group=0 "${on_every_node[@]}" "${run[@]}" &
learners=$!
while interrupted=; wait "$learners"; status=$?; [ "$interrupted" ]; do :; done
if [ "$late" ] && { [ "$status" = 0 ] || [ "$status" = 75 ]; }; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
for _ in {1..20}; do kill -0 "$actors" 2>/dev/null && sleep 1; done # the learners tell the actors
exit "$status"
