#!/usr/bin/env bash
# The life of a TPU VM or pod: makes it, runs one command on all of its workers, and deletes it.
#
#   scripts/tpu.sh create  NAME ZONE TYPE [OPTIONS]           TYPE: v2-32, v3-8, v4-8, v5e-16, v5p-8, v6e-8, ...
#   scripts/tpu.sh install NAME ZONE                          this checkout's last commit, on every worker
#   scripts/tpu.sh run     NAME ZONE [--detach] COMMAND...    on every worker; fails where one of them fails
#   scripts/tpu.sh wait    NAME ZONE                          for the run to end, with its status
#   scripts/tpu.sh logs    NAME ZONE [--follow] [--worker=0]
#   scripts/tpu.sh stop    NAME ZONE                          the run saves first
#   scripts/tpu.sh collect NAME ZONE FOLDER [RUN]             logs of all workers, and the run's folder
#   scripts/tpu.sh delete  NAME ZONE                          and looks whether nothing is left
#   scripts/tpu.sh resume  NAME ZONE TYPE [OPTIONS] [--attempts=20] COMMAND...
#                          create, install, run, delete; after a preemption all of it again, until the run has finished
#
# OPTIONS of create and resume: --spot, --queued (a queued resource), --within=6h (how long it may queue), --keep
# (delete nothing after a failure, an interrupt or, of resume, the end), --gcloud=--network=NAME (any option of gcloud's
# create). All take --dry-run, which prints every command in order and does nothing. NAME is the run's: VM and queued
# resource have it. Exit status: 0; that of the run (75: it was stopped, has saved, and the same command resumes from
# there); 69 where the TPU has gone; 2 for bad options; 1 for what else failed.
set -euo pipefail

STOPPED=75 GONE=69
POLL=${PLM_JAX_POLL:-30}  # seconds between two looks
ROOT=$(cd "$(dirname "$0")/.." && pwd)
# A live run's code stays as it is: the new one takes its place if there is no such run.
UNPACK='rm -rf plm_jax/next && mkdir -p plm_jax/next && tar xzf plm_jax.tar.gz -C plm_jax/next'
UNPACK+=' && bash plm_jax/next/scripts/worker.sh install'
# shellcheck source=scripts/line.sh
. "$ROOT/scripts/line.sh"
vm='' queue='' made='' started='' interrupted='' child='' scratch=''

say() { echo "$*" >&2; }
fail() { say "error: $*"; exit 1; }
note() { [ -z "$dry" ] || echo "# $*"; }

# Words -> one line that a shell reads as these words.
quoted() {
  local word line=''
  for word; do
    case $word in
      '' | *[!A-Za-z0-9_./:=,@%+-]*) word="'$(printf '%s' "$word" | sed "s/'/'\\\\''/g")'" ;;
    esac
    line+="${line:+ }$word"
  done
  printf '%s\n' "$line"
}

# Calls a program, so that a signal is heard at once and not when it ends. A dry run prints it (3: standard output).
call() {
  local status=0
  if [ -n "$dry" ]; then
    quoted "$@" >&3
    return
  fi
  "$@" </dev/null 3>&- 4>&- &
  child=$!
  wait "$child" || status=$?
  child=''
  return "$status"
}
tell() {
  [ -n "$dry" ] || say "+ $(quoted "$@")"
  call "$@"
}
tpu() { local what=$1 does=$2; shift 2; tell gcloud compute tpus "$what" "$does" "$name" --zone="$zone" --quiet "$@"; }
pause() { [ -n "$dry" ] || call sleep "$POLL"; }

# Asks what there is: sets vm and queue to states, empty for none. A dry run finds $1 and $2.
look() {
  call gcloud compute tpus tpu-vm list --zone="$zone" --format='value(name.basename(),state)' >"$scratch/vms" || return
  call gcloud compute tpus queued-resources list --zone="$zone" --format='value(name.basename(),state.state)' \
    >"$scratch/queues" || return
  vm=$1 queue=$2
  [ -z "$dry" ] || return 0
  vm=$(awk -v name="$name" '$1 == name { print $2 }' "$scratch/vms")
  queue=$(awk -v name="$name" '$1 == name { print $2 }' "$scratch/queues")
}
seen() { echo "VM: ${vm:-none}, queued resource: ${queue:-none}"; }

# Whether what `look` found is of no use any more.
gone() {
  case $queue in SUSPEND* | FAILED | DELETING) return 0 ;; esac
  case $vm in
    READY | CREATING | STARTING | RESTARTING | REPAIRING) return 1 ;;
    '') [ -z "$queue" ] || [ "$queue" = ACTIVE ] ;;
  esac
}

# Makes the TPU, where nothing has its name. Returns 1 where it cannot, and 2 where trying again is of no use.
create() {
  local status=0 options=("--accelerator-type=$type" ${spot:+--spot} ${extra[@]+"${extra[@]}"})
  made=yes
  [ -n "$dry" ] || say "$name: a $type in $zone is asked for, which takes minutes"
  if [ -n "$queued" ]; then
    tpu queued-resources create "--node-id=$name" "--runtime-version=$version" "${options[@]}" \
      ${within:+"--valid-until-duration=$within"} 2>"$scratch/errors" || status=$?
  else
    tpu tpu-vm create "--version=$version" "${options[@]}" 2>"$scratch/errors" || status=$?
  fi
  [ -n "$dry" ] || cat "$scratch/errors" >&2
  if [ "$status" != 0 ]; then
    say "error: $name was not made"
    if grep -qiE 'ALREADY_EXISTS|already exists' "$scratch/errors"; then
      made=''  # somebody took the name since `look`: it is not ours to delete
      return 2
    fi
    ! grep -qE 'INVALID_ARGUMENT|PERMISSION_DENIED|UNAUTHENTICATED|NOT_FOUND|unrecognized|Invalid' "$scratch/errors" ||
      return 2
    return 1
  fi
  [ -z "$queued" ] || await
}

# Waits until the queued resource has its VM. Returns 1 where it will not have one.
await() {
  local failures=0
  note 'until the queued resource is ACTIVE:'
  while [ "$failures" -lt 10 ]; do
    if look READY ACTIVE; then
      failures=0
      [ "$queue $vm" != 'ACTIVE READY' ] || return 0
      case $queue in
        '' | SUSPEND* | FAILED | DELETING) say "error: the queued resource $name is ${queue:-no more}"; return 1 ;;
      esac
      say "$name waits: $(seen)"
    else
      failures=$((failures + 1))
    fi
    pause
  done
  say "error: cannot ask for the queued resource $name any more"
  return 1
}

# Deletes whatever has the name, and looks whether it is gone: $1 times, as what was interrupted may come yet.
remove() {
  local empty=0 tries
  for tries in 1 2 3 4 5 6 7 8; do
    if ! look READY "${queued:+ACTIVE}"; then
      say "cannot ask what there is in $zone"
    elif [ -z "$vm$queue" ]; then
      empty=$((empty + 1))
      if [ "$empty" -ge "$1" ]; then
        made=''
        say "deleted: TPU and queued resource $name in $zone"
        return 0
      fi
    elif [ -n "$queue" ]; then
      tpu queued-resources delete --force || true  # its VM with it
    else
      tpu tpu-vm delete || true
    fi
    if [ -n "$dry" ]; then
      note 'until neither list has it:'
      look '' ''
      made=''
      return 0
    fi
    [ "$tries" = 8 ] || pause
  done
  say "error: $name may still be there, and paid for ($(seen)); look and delete: scripts/tpu.sh delete $name $zone"
  return 1
}

on() { tpu tpu-vm ssh "--worker=$1" "--command=bash plm_jax/code/scripts/worker.sh $2"; }

install() {
  local archive=$scratch/plm_jax.tar.gz
  [ -z "$dry" ] || archive=plm_jax.tar.gz
  [ -z "$(git -C "$ROOT" status --porcelain --untracked-files=no)" ] ||
    say 'the last commit is installed, without the changes that are not committed'
  call git -C "$ROOT" archive --format=tar.gz -o "$archive" HEAD || return
  tell gcloud compute tpus tpu-vm scp "$archive" "$name:plm_jax.tar.gz" --zone="$zone" --worker=all --quiet || return
  tpu tpu-vm ssh --worker=all "--command=$UNPACK"
}

# Starts the command on all workers, or on none. Returns 4 where it is live there already.
start() {
  local status=0 id=ID
  [ -n "$dry" ] || id=$(date -u +%Y%m%dT%H%M%S)-$$
  on all "check $(quoted "$@")" || status=$?
  case $status in
    0) ;;
    3) say "error: a run is live on $name: scripts/tpu.sh wait $name $zone, or stop" ;;
    4) say "this run is live on $name" ;;
    127) say "error: nothing is installed on $name: scripts/tpu.sh install $name $zone" ;;
    *) say "error: cannot ask every worker of $name" ;;
  esac
  [ "$status" = 0 ] || return "$status"
  if ! on all "start $id $(quoted "$@")"; then
    say "error: the run did not start on every worker of $name: it is stopped on the others"
    on all "stop $id" || true
    return 1
  fi
}

# Waits until the run has ended on all workers. Returns its status; GONE where the TPU has gone.
await_run() {
  local failures=0 behind=0 status=0 states=$scratch/states
  note 'until the run has ended on every worker:'
  while :; do
    if call gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --quiet --worker=all \
      "--command=bash plm_jax/code/scripts/worker.sh state $POLL" >"$states"; then
      [ -z "$dry" ] || return 0
      failures=0
      grep -q ': running$' "$states" || break
      if grep -qE ': (ended [1-9][0-9]*|lost|none)$' "$states"; then
        behind=$((behind + 1))
        [ "$behind" != 3 ] || on all stop >&2 || true  # the others would wait for ever
      fi
    else
      failures=$((failures + 1))
      if look '' '' && gone; then
        say "the TPU $name has gone ($(seen))"
        return "$GONE"
      fi
      if [ "$failures" = 10 ]; then
        say "error: cannot ask the workers of $name any more, which may be at work"
        return 1
      fi
      pause
    fi
  done
  cat "$states" >&2
  status=$(sed -n 's/.*: lost$/137/p; s/.*: none$/1/p; s/.*: ended //p' "$states" | awk -v stopped="$STOPPED" '
    $1 && (!worst || worst == stopped) { worst = $1 }
    END { print NR ? worst + 0 : 1 }')
  [ "$status" = 0 ] || on all 'log 30' >&2 || true
  return "$status"
}

# One life of the TPU: from whatever there is to the end of the run. Returns the run's status, or GONE.
attempt() {
  local status=0 live=0
  look '' '' || fail "cannot ask what there is in $zone"
  if [ -n "$vm$queue" ] && gone; then
    say "$name is of no use any more ($(seen)): it is deleted first"
    remove 1 || exit 1
  fi
  if [ -z "$vm$queue" ]; then
    create || status=$?
  else
    [ -z "$queue" ] || await || status=$?
    [ "$status" != 0 ] || on all "check $(quoted "${words[@]}")" || live=$?
    [ "$live" = 3 ] || made=yes
  fi
  case $status in 0) ;; 1) remove 2 || exit 1; return "$GONE" ;; *) exit 1 ;; esac
  case $live in
    4) started=yes ;;
    3) fail "another run is live on $name, which is left alone" ;;
    *)
      if install && start "${words[@]}"; then
        started=yes
      else
        pause
        if look '' '' && gone; then return "$GONE"; fi
        fail "cannot install and start on every worker of $name"
      fi ;;
  esac
  await_run || status=$?
  started=''
  return "$status"
}

resume() {
  local number status=0
  for ((number = 1; number <= attempts; number++)); do
    say "attempt $number of $attempts"
    status=0
    attempt || status=$?
    [ -z "$dry" ] || break
    case $status in
      0) say "the run has finished"; break ;;
      "$STOPPED" | "$GONE") pause ;;
      *)
        pause  # a list may be behind what happened
        if look '' '' && ! gone; then break; fi
        status=$GONE ;;
    esac
  done
  case $status in
    "$STOPPED" | "$GONE") say "error: not finished after $attempts attempts: the same command resumes" ;;
  esac
  note 'at the end; and after a preemption, before all of it again:'
  if [ -z "$keep" ]; then
    remove 1 || [ "$status" != 0 ] || status=1
    made=''
  fi
  return "$status"
}

# What is left to do at the end, whatever the end is.
# shellcheck disable=SC2329  # a trap calls it
leave() {
  local status=$?
  exec 2>&4  # a signal may come while it is a file
  trap '' INT TERM HUP
  trap - EXIT
  if [ -n "$child" ]; then
    kill "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  if [ -n "$made" ] && [ -z "$keep" ]; then
    [ -z "$started" ] || on all stop || true  # it saves
    say "$verb has not come to its end: what it made is deleted"
    remove 2 || true
  elif [ -z "$dry" ] && [ "$status" != 2 ]; then
    case $verb in
      create | resume) [ -z "$made" ] || say "kept, and paid for until: scripts/tpu.sh delete $name $zone" ;;
      run | wait)
        if [ -n "$interrupted$detach" ] && [ -n "$started" ]; then
          say "the run goes on: scripts/tpu.sh wait $name $zone, or stop"
        fi
        say "$name is paid for until: scripts/tpu.sh delete $name $zone" ;;
      install) [ "$status" = 0 ] || say "$name is paid for until: scripts/tpu.sh delete $name $zone" ;;
    esac
  fi
  rm -rf "$scratch"
  exit "$status"
}

main() {
  read_line "$@"
  check_line
  exec 3>&1 4>&2
  trap leave EXIT
  trap 'interrupted=yes; exit 130' INT
  trap 'interrupted=yes; exit 143' TERM
  trap 'interrupted=yes; exit 129' HUP
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/plm_jax.XXXXXX")
  case $verb in
    create)
      look '' '' || fail "cannot ask what there is in $zone: nothing was made"
      [ -z "$vm$queue" ] || fail "$name is in $zone already ($(seen)): delete it first, or take another name"
      create || exit 1
      made=''
      [ -n "$dry" ] || say "$name is there, and paid for until: scripts/tpu.sh delete $name $zone" ;;
    install) install || fail "not installed on every worker of $name" ;;
    run)
      start "${words[@]}" || exit 1
      started=yes
      [ -n "$detach" ] || await_run ;;
    wait) started=yes; await_run ;;
    logs) on "$worker" "log 100${follow:+ --follow}" ;;
    stop) on all stop || fail "not stopped on every worker of $name" ;;
    collect)
      call mkdir -p "$folder/logs"
      tpu tpu-vm ssh --worker=all '--command=cat plm_jax/job/log' "--output-directory=$folder/logs" ||
        fail "the logs of $name were not all copied"
      case $from in
        '') ;;
        gs://*) tell gcloud storage rsync --recursive "$from" "$folder/run" || fail "$from was not copied" ;;
        *)
          tell gcloud compute tpus tpu-vm scp "$name:plm_jax/$from" "$folder/run" --zone="$zone" --worker=0 --quiet \
            --recurse || fail "$from was not copied from worker 0 of $name" ;;
      esac ;;
    delete) remove 1 || exit 1 ;;
    resume) resume ;;
  esac
}

# Read to its end before anything is done: the file may change while a run of days is waited for.
{ main "$@"; exit; }
