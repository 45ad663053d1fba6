{{/*
What all names begin with. The release's name: with the release `lpc` they are those of the kustomize base. Inside another chart
the chart's name or its alias follows, since the parent may have a redis or a gateway as well. A name that is too long, or that
Kubernetes does not take, is changed and gets a digest, so that two of them stay apart. 39 characters: a CronJob may have 52.
*/}}
{{- define "lpc.prefix" -}}
{{- $own := .Values.nameOverride | default (ternary "" .Chart.Name .Chart.IsRoot) }}
{{- $name := .Values.fullnameOverride | default (trimSuffix "-" (printf "%s-%s" .Release.Name $own)) }}
{{- $fit := regexReplaceAll "[^a-z0-9]+" (lower $name) "-" | trimAll "-" }}
{{- if not (regexMatch "^[a-z]" $fit) }}{{ $fit = printf "lpc-%s" $fit }}{{ end }}
{{- if or (ne $fit $name) (gt (len $fit) 39) }}{{ $fit = printf "%s-%s" ($fit | trunc 30 | trimSuffix "-") ($name | sha256sum | trunc 8) }}{{ end }}
{{- $fit -}}
{{- end -}}

{{/* Labels that only the pods of one release, or of one alias inside another chart, have. */}}
{{- define "lpc.instance" -}}
{{- ternary .Release.Name (include "lpc.prefix" .) .Chart.IsRoot -}}
{{- end -}}

{{- define "lpc.selector" -}}
app.kubernetes.io/name: lpc-predictor
app.kubernetes.io/instance: {{ include "lpc.instance" . | quote }}
{{- end -}}

{{- define "lpc.labels" -}}
app.kubernetes.io/part-of: learned-prefix-cache
app.kubernetes.io/instance: {{ include "lpc.instance" . | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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
