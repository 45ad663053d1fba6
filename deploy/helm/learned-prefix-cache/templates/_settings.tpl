{{/* The sidecar's settings: what the values say, over the kustomize base's. */}}
{{- define "lpc.settings" -}}
{{- $found := dict }}
{{- range .Files.Lines "files/base/predictor.env" }}
{{- if contains "=" . }}{{ $_ := set $found (splitn "=" 2 .)._0 (splitn "=" 2 .)._1 }}{{ end }}
{{- end }}
{{- with .Values.model.name }}{{ $_ := set $found "LPC_MODEL" . }}{{ end }}
{{- with .Values.servedModels }}{{ $_ := set $found "LPC_SERVED_MODELS" (toJson .) }}{{ end }}
{{- if .Values.gpu.enabled }}
{{- $_ := set $found "LPC_PROVIDER" "cuda" }}
{{- $_ := set $found "LPC_CUDA_MEMORY_MIB" (toString .Values.gpu.memoryMiB) }}
{{- end }}
{{- if .Values.learning.enabled }}
{{- $_ := set $found "LPC_LABEL_LOG" "/labels" }}
{{- $_ := set $found "LPC_LABEL_LOG_MIB" (toString .Values.learning.logMiB) }}
{{- end }}
{{- if .Values.tls.enabled }}
{{- $_ := set $found "LPC_TLS_CERTIFICATE" "/etc/lpc/tls/tls.crt" }}
{{- $_ := set $found "LPC_TLS_KEY" "/etc/lpc/tls/tls.key" }}
{{- if .Values.tls.clientCertificates }}{{ $_ := set $found "LPC_TLS_CLIENT_CA" "/etc/lpc/tls/ca.crt" }}{{ end }}
{{- end }}
{{- if include "lpc.turns" . }}
{{- $tls := .Values.redis.tls.enabled }}
{{- $_ := set $found "LPC_REDIS_URL" (printf "%s://engine@%s-redis.%s.svc:6379/0" (ternary "rediss" "redis" $tls) (include "lpc.prefix" .) .Release.Namespace) }}
{{- if $tls }}
{{- $_ := set $found "LPC_REDIS_CA" "/etc/lpc/tls/ca.crt" }}
{{- $_ := set $found "LPC_CLIENT_CERTIFICATE" "/etc/lpc/tls/tls.crt" }}
{{- $_ := set $found "LPC_CLIENT_KEY" "/etc/lpc/tls/tls.key" }}
{{- end }}
{{- end }}
{{- if eq .Values.redis.mode "external" }}
{{- $_ := set $found "LPC_REDIS_URL" .Values.redis.external.url }}
{{- end }}
{{- if or (eq .Values.redis.mode "cluster") (and (eq .Values.redis.mode "external") .Values.redis.external.cluster) }}
{{- $_ := set $found "LPC_REDIS_CLUSTER" "true" }}
{{- end }}
{{- toYaml (mergeOverwrite $found .Values.settings) }}
{{- end -}}

{{/* The response caches' settings, over those of the kustomize component. */}}
{{- define "lpc.caches" -}}
{{- $found := dict }}
{{- range .Files.Lines "files/gateway/caches.env" }}
{{- if contains "=" . }}{{ $_ := set $found (splitn "=" 2 .)._0 (splitn "=" 2 .)._1 }}{{ end }}
{{- end }}
{{- $_ := set $found "LPC_CACHE_REDIS_URL" (printf "redis://%s-response-cache.%s.svc:6379/0" (include "lpc.prefix" .) .Release.Namespace) }}
{{- with .Values.gateway.cacheScopes }}{{ $_ := set $found "LPC_CACHE_SCOPES" (toJson .) }}{{ end }}
{{- toYaml (mergeOverwrite $found .Values.gateway.cacheSettings) }}
{{- end -}}

{{/* The gateway's settings, over those of the kustomize component. */}}
{{- define "lpc.gateway" -}}
{{- $found := dict }}
{{- range .Files.Lines "files/gateway/gateway.env" }}
{{- if contains "=" . }}{{ $_ := set $found (splitn "=" 2 .)._0 (splitn "=" 2 .)._1 }}{{ end }}
{{- end }}
{{- $_ := set $found "LPC_PREDICTOR_ADDRESS" (printf "dns:///%s-caches.%s.svc:50052" (include "lpc.prefix" .) .Release.Namespace) }}
{{- $_ := set $found "LPC_GATEWAY_REDIS_URL" (printf "redis://gateway@%s-response-cache.%s.svc:6379/0" (include "lpc.prefix" .) .Release.Namespace) }}
{{- $_ := set $found "LPC_GATEWAY_ENGINES" (join "," .Values.gateway.engines) }}
{{- toYaml (mergeOverwrite $found .Values.gateway.settings) }}
{{- end -}}

{{/* Adds to settings with what certificates the sidecars are asked. Takes a list: the root, the settings. */}}
{{- define "lpc.predictor-certificates" -}}
{{- $root := index . 0 }}{{ $found := index . 1 }}
{{- if $root.Values.tls.enabled }}
{{- $_ := set $found "LPC_PREDICTOR_CA" "/etc/lpc/tls/ca.crt" }}
{{- if $root.Values.tls.clientCertificates }}
{{- $_ := set $found "LPC_CLIENT_CERTIFICATE" "/etc/lpc/tls/tls.crt" }}
{{- $_ := set $found "LPC_CLIENT_KEY" "/etc/lpc/tls/tls.key" }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Not empty where the sidecars tell each other of turns through the chart's own Redis: not where it wants certificates that they lack. */}}
{{- define "lpc.turns" -}}
{{- if or (eq .Values.redis.mode "cluster") (and (eq .Values.redis.mode "embedded") (or .Values.tls.enabled (not .Values.redis.tls.enabled))) -}}
true
{{- end -}}
{{- end -}}

{{/* The engines' settings. */}}
{{- define "lpc.engine" -}}
{{- $prefix := include "lpc.prefix" . }}
{{- $service := ternary "predictor" "predictor-headless" (eq .Values.kind "DaemonSet") }}
{{- $found := dict "PYTHONHASHSEED" "0" "LPC_PREDICTOR_ADDRESS" (printf "dns:///%s-%s.%s.svc:50051" $prefix $service .Release.Namespace) }}
{{- include "lpc.predictor-certificates" (list . $found) }}
{{- if and (eq .Values.redis.mode "embedded") .Values.redis.tls.enabled }}
{{- $_ := set $found "LPC_REDIS_CA" "/etc/lpc/tls/ca.crt" }}
{{- $_ := set $found "LPC_CLIENT_CERTIFICATE" "/etc/lpc/tls/tls.crt" }}
{{- $_ := set $found "LPC_CLIENT_KEY" "/etc/lpc/tls/tls.key" }}
{{- end }}
{{- if eq .Values.redis.mode "external" }}
{{- $_ := set $found "LPC_REDIS_URL" .Values.redis.external.url }}
{{- end }}
{{- if or (eq .Values.redis.mode "cluster") (and (eq .Values.redis.mode "external") .Values.redis.external.cluster) }}
{{- $_ := set $found "LPC_REDIS_CLUSTER" "true" }}
{{- $_ := set $found "LPC_REDIS_SHARDS" "12" }}
{{- end }}
{{- toYaml (mergeOverwrite $found .Values.engine.settings) }}
{{- end -}}
