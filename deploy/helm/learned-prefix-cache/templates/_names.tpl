{{/* What all names begin with: with the release `lpc` they are those of the kustomize base. */}}
{{- define "lpc.prefix" -}}
{{- .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "lpc.selector" -}}
app.kubernetes.io/name: lpc-predictor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lpc.labels" -}}
app.kubernetes.io/part-of: learned-prefix-cache
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* All recommended labels of an object of the chart's own. Takes a list: the root, its name, its component. */}}
{{- define "lpc.named" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/component: {{ index . 2 }}
{{ include "lpc.labels" (index . 0) }}
{{- end -}}

{{- define "lpc.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion (ternary "gpu" "cpu" .Values.gpu.enabled)) }}
{{- end -}}

{{- define "lpc.trainer" -}}
{{ .Values.trainer.image.repository }}:{{ .Values.trainer.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "lpc.claim" -}}
{{ .Values.model.volume.existingClaim | default (printf "%s-models" (include "lpc.prefix" .)) }}
{{- end -}}

{{- define "lpc.cachesTlsSecret" -}}
{{ .Values.gateway.existingTlsSecret | default (printf "%s-caches-tls" (include "lpc.prefix" .)) }}
{{- end -}}

{{- define "lpc.accessSecret" -}}
{{ .Values.gateway.existingAccessSecret | default (printf "%s-gateway-access" (include "lpc.prefix" .)) }}
{{- end -}}

{{- define "lpc.cacheSecret" -}}
{{ .Values.gateway.existingSecret | default (printf "%s-response-cache" (include "lpc.prefix" .)) }}
{{- end -}}

{{- define "lpc.redisSecret" -}}
{{ .Values.redis.existingSecret | default (printf "%s-redis" (include "lpc.prefix" .)) }}
{{- end -}}
