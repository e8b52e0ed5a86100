#!/usr/bin/env bash
# What scripts/tpu.sh asks of one worker of a TPU. In ~/plm_jax: code, venv, job (of the run), and what runs write.
#
#   worker.sh install              puts this code where it is run from, with a Python that is new enough
#   worker.sh check COMMAND...     exit status 3: a run is live; 4: it is this command; 5: its code is not installed
#   worker.sh start ID COMMAND...  starts the command, which goes on without who started it
#   worker.sh state SECONDS        prints whether it runs, lost, or ended with which status; waits so long for its end
#   worker.sh stop [ID]            lets it save, however long that takes, then ends it
#   worker.sh log LINES [--follow]
#
# A run is live as long as one of its processes has the lock, which is the kernel's to give: no crash leaves it behind.
set -euo pipefail
HOME_OF=$HOME/plm_jax
JOB=$HOME_OF/job
mkdir -p "$JOB"
touch "$JOB/lock"
STOP_SECONDS=${PLM_JAX_STOP_SECONDS:-120}  # after which a run is killed that neither ends nor saves
SAVE_SECONDS=${PLM_JAX_SAVE_SECONDS:-3600}  # after which a run is killed whose save does not end

say() { echo "$(hostname): $*"; }
live() { ! flock -n "$JOB/lock" true; }

install() {
  local here
  here=$(cd "$(dirname "$0")/.." && pwd)
  exec 9>>"$JOB/lock"
  flock -n 9 || { say "a run is live: $(cat "$JOB/command")" >&2; exit 3; }
  rm -rf "$HOME_OF/code" "$HOME_OF/venv"
  mv "$here" "$HOME_OF/code"
  cd "$HOME_OF/code"
  if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && python3 -m venv "$HOME_OF/venv"; then
    "$HOME_OF/venv/bin/pip" install -q -e '.[tpu]'
  else  # the image of v2 to v4 has Python 3.10
    python3 -m pip install -q --user uv
    python3 -m uv venv -q --python 3.12 "$HOME_OF/venv"
    python3 -m uv pip install -q --python "$HOME_OF/venv/bin/python" -e '.[tpu]'
  fi
  "$HOME_OF/venv/bin/python" -c 'import sys, jax, plm_jax; print("Python", sys.version, "jax", jax.__version__)'
}

start() {
  local id=$1
  shift
  exec 9>>"$JOB/lock"
  flock -n 9 || { say "a run is live: $(cat "$JOB/command")" >&2; exit 3; }
  rm -f "$JOB/status" "$JOB/saving"
  export PLM_JAX_SAVING=$JOB/saving  # a file that is there while a stopped run saves
  echo "$id" >"$JOB/id"
  printf '%q ' "$@" >"$JOB/command"
  echo "=== $id $(cat "$JOB/command")" >>"$JOB/log"
  cd "$HOME_OF"
  export PATH=$HOME_OF/venv/bin:$PATH PYTHONPATH=$HOME_OF/code
  setsid bash code/scripts/worker.sh supervise "$@" </dev/null >>"$JOB/log" 2>&1 &
  echo $! >"$JOB/process"
  say "started $id"
}

# Runs the command to its end, whatever signals come, and writes its status.
supervise() {
  local status=0
  trap : TERM HUP INT
  "$@" || status=$?
  echo "=== ended with status $status" >>"$JOB/log"
  echo "$status" >"$JOB/status.new"
  mv "$JOB/status.new" "$JOB/status"
}

state() {
  local until=$((SECONDS + $1))
  while [ -s "$JOB/id" ] && [ ! -s "$JOB/status" ] && live && [ "$SECONDS" -lt "$until" ]; do sleep 0.5; done
  if [ ! -s "$JOB/id" ]; then say none
  elif [ -s "$JOB/status" ]; then say "ended $(cat "$JOB/status")"
  elif live; then say running
  elif [ -s "$JOB/status" ]; then say "ended $(cat "$JOB/status")"  # since the first look
  else say lost
  fi
}

stop() {
  local process until
  if ! live || { [ $# != 0 ] && [ "$1" != "$(cat "$JOB/id")" ]; }; then
    say 'nothing to stop'
    return
  fi
  process=$(cat "$JOB/process")
  kill -TERM -- "-$process" || true  # a group of processes
  until=$((SECONDS + STOP_SECONDS))
  while live && [ "$SECONDS" -lt "$until" ] && [ ! -e "$JOB/saving" ]; do sleep 0.5; done
  if [ -e "$JOB/saving" ]; then
    say 'saves its checkpoint'
    until=$((SECONDS + SAVE_SECONDS))
    while live && [ "$SECONDS" -lt "$until" ]; do
      sleep 0.5
      # The save has ended: the run has the usual time for its end.
      if [ ! -e "$JOB/saving" ] && [ "$until" -gt $((SECONDS + STOP_SECONDS)) ]; then until=$((SECONDS + STOP_SECONDS)); fi
    done
  fi
  if live; then
    kill -KILL -- "-$process" || true
    sleep 0.5
  fi
  ! live || { say 'a process of the run does not end' >&2; exit 1; }
  say "stopped $(cat "$JOB/id")"
}

verb=$1
shift
case $verb in
  check)
    if live; then
      say "a run is live: $(cat "$JOB/command")" >&2
      [ "$(printf '%q ' "$@")" = "$(cat "$JOB/command")" ] && exit 4
      exit 3
    fi
    [ -x "$HOME_OF/venv/bin/python" ] || { say 'nothing is installed' >&2; exit 127; } ;;
  log)
    touch "$JOB/log"
    tail -n "$1" ${2:+-F} "$JOB/log" ;;
  install | start | supervise | state | stop) "$verb" "$@" ;;
esac
