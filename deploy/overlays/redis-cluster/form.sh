# Forms the cluster once, and goes on to keep it together. Redis remembers addresses, not names: when all nodes come back under
# new addresses, none finds another, and the cluster stays down until one of them gets the others' addresses (CLUSTER MEET).
# NODES: name:port of each. REPLICAS: of each primary. REDISCLI_AUTH: the admin's password. EVERY: seconds between two looks.
# RUN: a folder, in which the file `whole` is there while the cluster is.
set -u
trap 'exit 0' TERM

ask() { # node, command...
  node=$1
  shift
  timeout 5 redis-cli -h "${node%:*}" -p "${node##*:}" --user admin "$@" 2>&1 | tr -d '\r'
}

address() { # of a node: CLUSTER MEET takes no names
  found=$(getent hosts "${1%:*}" | head -n 1 | cut -d ' ' -f 1)
  echo "${found:-${1%:*}}"
}

meets() { # how many nodes, itself among them, a node is in touch with
  ask "$1" cluster nodes | awk '$3 !~ /fail|noaddr|handshake/ && $8 == "connected"' | wc -l
}

say() { # a line, unless it was the last one
  [ "$1" = "${said:-}" ] || echo "$1"
  said=$1
}

while :; do
  alive="" formed="" missing="" count=0
  for name in $NODES; do
    info=$(ask "$name" cluster info)
    case "$info" in
      *cluster_known_nodes:*) alive="$alive $name" count=$((count + 1)) ;;
      *) missing="$missing $name" ;;
    esac
    # One that knows itself alone and has no slots belongs to no cluster yet.
    echo "$info" | awk -F : '/^cluster_(known_nodes|slots_assigned):/ { n += $2 } END { exit n < 2 }' && formed="$formed $name"
  done
  apart=""
  for name in $formed; do
    ask "$name" cluster info | grep -q cluster_state:ok && [ "$(meets "$name")" -ge "$count" ] || apart="$apart $name"
  done
  if [ -n "$formed" ] && [ -z "$apart" ] && [ -z "$missing" ]; then
    touch "$RUN/whole"
    say "the cluster is whole"
  else
    rm -f "$RUN/whole"
  fi
  if [ -n "$apart" ]; then
    say "not together:$apart; introducing$alive to each other"
    first=${formed# }
    first=${first%% *}
    for name in $alive; do
      [ "$name" = "$first" ] || ask "$first" cluster meet "$(address "$name")" "${name##*:}" | grep -v OK
    done
  elif [ -n "$missing" ]; then
    say "no answer from$missing"
  elif [ -z "$formed" ]; then
    say "forming the cluster"
    all=""
    for name in $NODES; do all="$all $(address "$name"):${name##*:}"; done
    timeout 120 redis-cli --user admin --cluster create $all --cluster-replicas "$REPLICAS" --cluster-yes
  fi
  sleep "$EVERY" &
  wait $!
done
