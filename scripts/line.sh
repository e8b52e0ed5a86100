# The command line of scripts/tpu.sh, which reads this file: sets the variables below, or says in one line what is wrong.
# shellcheck shell=bash disable=SC2034  # who reads it has the use of them

verb='' name='' zone='' type='' version='' folder='' from='' worker=0 attempts=20 words=() extra=()
spot='' queued='' within='' keep='' detach='' follow='' dry=''

bad() { say "error: $*"; exit 2; }

usage() { sed -n '2,/^set -/p' "$0" | sed -n 's/^# \{0,1\}//p'; }

# Reads the command line: positions first, then options, then the command.
read_line() {
  local places=() shape='NAME ZONE' needed=2 most=2 commanded='' known='' option
  verb=${1:-}
  [ $# = 0 ] || shift
  case $verb in
    create) shape='NAME ZONE TYPE' needed=3 most=3 known=' spot queued within keep gcloud ' ;;
    resume) shape='NAME ZONE TYPE' needed=3 most=3 known=' spot queued within keep gcloud attempts ' commanded=yes ;;
    run) known=' detach ' commanded=yes ;;
    logs) known=' follow worker ' ;;
    install | wait | stop | delete) ;;
    collect) shape='NAME ZONE FOLDER [RUN]' needed=3 most=4 ;;
    -h | --help) usage; exit ;;
    *) bad "'$verb' is none of create, install, run, wait, logs, stop, collect, delete, resume (--help tells more)" ;;
  esac
  while [ $# -gt 0 ]; do
    option=${1%%=*}
    case $1 in
      -h | --help) usage; exit ;;
      --) shift; break ;;
      --dry-run) dry=yes ;;
      --*)
        case $known in *" ${option#--} "*) ;; *) bad "$verb has no option $option (--help tells which)" ;; esac
        case $1 in
          --spot) spot=yes ;;
          --queued) queued=yes ;;
          --keep) keep=yes ;;
          --detach) detach=yes ;;
          --follow) follow=yes ;;
          --within=?*) within=${1#*=} ;;
          --gcloud=--?*) extra+=("${1#*=}") ;;
          --attempts=?*) attempts=${1#*=} ;;
          --worker=?*) worker=${1#*=} ;;
          --within* | --gcloud* | --attempts* | --worker*) bad "$1: expected $option=VALUE" ;;
          *) bad "$1: expected $option" ;;
        esac ;;
      *)
        [ "${#places[@]}" -lt "$most" ] || break
        places+=("$1") ;;
    esac
    shift
  done
  [ "${#places[@]}" -ge "$needed" ] || bad "$verb takes $shape"
  name=${places[0]} zone=${places[1]}
  case $verb in create | resume) type=${places[2]} ;; collect) folder=${places[2]} from=${places[3]:-} ;; esac
  words=("$@")
  [ -n "$commanded" ] || [ $# = 0 ] || bad "$verb takes no more than that: $(quoted "$@")"
  [ -z "$commanded" ] || [ $# != 0 ] || bad "$verb takes a command: python -m experiments.bert_base ..."
}

check_line() {
  local output='' word
  [[ $name =~ ^[a-z]([-a-z0-9]{0,60}[a-z0-9])?$ ]] ||
    bad "the name $name: expected lower-case letters, digits and -, and a letter first"
  [[ $zone =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]$ ]] || bad "the zone $zone: expected one such as us-central1-a"
  [[ $attempts =~ ^[1-9][0-9]*$ ]] || bad "--attempts=$attempts: expected a number from 1"
  [[ $worker =~ ^([0-9]+|all)$ ]] || bad "--worker=$worker: expected a number, or all"
  [ -z "$within" ] || [ -n "$queued" ] || bad '--within says how long a queued resource may wait: give --queued too'
  [[ -z $within || $within =~ ^[1-9][0-9]*[smhd]$ ]] || bad "--within=$within: expected one such as 6h"
  if [ -n "$type" ]; then
    [[ $type =~ ^v5e-[0-9]+$ ]] && type=v5litepod-${type#v5e-}
    [[ $type =~ -[1-9][0-9]*$ ]] || bad "the type $type: expected one such as v2-32, with the number of cores or chips"
    case $type in
      v2-* | v3-* | v4-*) version=tpu-ubuntu2204-base ;;
      v5litepod-*) version=v2-alpha-tpuv5-lite ;;
      v5p-*) version=v2-alpha-tpuv5 ;;
      v6e-*) version=v2-alpha-tpuv6e ;;
      *) bad "the type $type: expected v2-, v3-, v4-, v5e-, v5p- or v6e- and a number" ;;
    esac
  fi
  [ "$verb" = resume ] || return 0
  for word in "${words[@]}"; do
    case $word in --output=gs://?* | --output=/?*) output=yes ;; esac
  done
  [ -n "$output" ] || bad 'a preempted TPU takes its disk with it: give the command --output=gs://BUCKET/RUN'
}
