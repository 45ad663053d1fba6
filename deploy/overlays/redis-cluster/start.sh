# Starts a node. PASSWORD and ADMIN_PASSWORD come from the secret, POD_IP from Kubernetes, RUN and DATA from the pod's volumes.
set -eu
if [ "$PASSWORD" = replace-me ] || [ "$ADMIN_PASSWORD" = replace-me ]; then
  echo "replace the passwords in the secret lpc-redis"
  exit 1
fi
# As Redis keeps it: the access list's lines are split at spaces, and a password may have any character.
digest() { printf '#%s' "$(printf %s "$1" | sha256sum | cut -d ' ' -f 1)"; }
quoted() { printf %s "$1" | sed 's/[\\"]/\\&/g'; }
{
  echo "user default off"
  # What eviction_client.stores.redis runs, and how a client learns the cluster's slots.
  echo "user engine on $(digest "$PASSWORD") ~lpc:* resetchannels -@all +eval +zmscore +zadd +zcount +zremrangebyrank +pexpire +get +set +time +cluster|slots +command +info +readonly"
  # Forms the cluster, and feeds the replicas.
  echo "user admin on $(digest "$ADMIN_PASSWORD") ~* &* +@all"
  echo "user health on nopass resetkeys resetchannels -@all +ping"
} > "$RUN/users.acl"
cp "${CONFIG:-/etc/redis/redis.conf}" "$RUN/redis.conf"
printf 'masteruser admin\nmasterauth "%s"\n' "$(quoted "$ADMIN_PASSWORD")" >> "$RUN/redis.conf"
exec redis-server "$RUN/redis.conf" --aclfile "$RUN/users.acl" --dir "$DATA" --cluster-announce-ip "$POD_IP" --port "${PORT:-6379}"
