{{/* The sidecar's pod, for a Deployment or a DaemonSet. */}}
{{- define "lpc.predictor" -}}
{{- $volume := eq .Values.model.source "volume" -}}
metadata:
  labels:
    {{- /* The name becomes the job of the metrics, by which the alert rules know the sidecars. */}}
    {{- include "lpc.selector" . | nindent 4 }}
    app.kubernetes.io/component: predictor
    app.kubernetes.io/part-of: learned-prefix-cache
    {{- with merge (deepCopy .Values.podLabels) (.Values.commonLabels | default dict) }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/settings: {{ include "lpc.settings" . | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "lpc.prefix" . }}-predictor
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- /* Longer than LPC_DRAIN_TIMEOUT_S (10 s) and the pre-stop pause together. */}}
  terminationGracePeriodSeconds: 30
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- $tolerations := .Values.tolerations }}
  {{- if .Values.gpu.enabled }}
  {{- $tolerations = prepend $tolerations (dict "key" .Values.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
  {{- end }}
  {{- with $tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.kind "Deployment" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "lpc.selector" . | nindent 10 }}
  {{- end }}
  {{- if $volume }}
  initContainers:
    {{- /* As in the kustomize component: what the image carries goes to a volume that has no such model yet. */}}
    {{- $patch := .Files.Get "files/models/predictor.yaml" | fromYaml }}
    {{- $seed := index $patch.spec.template.spec.initContainers 0 }}
    {{- $_ := set $seed "image" (include "lpc.image" .) }}
    - {{ toYaml $seed | nindent 6 | trim }}
  {{- end }}
  containers:
    - name: predictor
      image: {{ include "lpc.image" . }}
      {{- if ne .Values.image.pullPolicy "IfNotPresent" }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- end }}
      args: [serve]
      envFrom:
        - configMapRef:
            name: {{ include "lpc.prefix" . }}-predictor
      {{- $env := .Values.extraEnv }}
      {{- if include "lpc.turns" . }}
      {{- $env = prepend $env (dict "name" "LPC_REDIS_PASSWORD_FILE" "value" "/etc/lpc/redis/password") }}
      {{- end }}
      {{- with $env }}
      env: {{ toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: grpc
          containerPort: 50051
        - name: metrics
          containerPort: 9090
      {{- if .Values.tls.enabled }}
      {{- /* The kubelet's own gRPC probe speaks no TLS; the Unix socket stays plain. */}}
      {{- $probe := dict "exec" (dict "command" (list "python" "/opt/lpc/healthcheck.py" "unix:///run/lpc/predictor.sock")) }}
      startupProbe: {{ merge (dict "periodSeconds" 5 "timeoutSeconds" 5 "failureThreshold" 30) $probe | toYaml | nindent 8 }}
      readinessProbe: {{ merge (dict "periodSeconds" 10 "timeoutSeconds" 5) $probe | toYaml | nindent 8 }}
      livenessProbe: {{ merge (dict "periodSeconds" 30 "timeoutSeconds" 10 "failureThreshold" 3) $probe | toYaml | nindent 8 }}
      {{- else }}
      {{- /* The port opens only after the model has loaded. */}}
      {{- $probe := dict "grpc" (dict "port" 50051) }}
      startupProbe: {{ merge (dict "periodSeconds" 2 "failureThreshold" 60) $probe | toYaml | nindent 8 }}
      readinessProbe: {{ merge (dict "periodSeconds" 5 "timeoutSeconds" 3) $probe | toYaml | nindent 8 }}
      livenessProbe: {{ merge (dict "periodSeconds" 20 "timeoutSeconds" 5 "failureThreshold" 3) $probe | toYaml | nindent 8 }}
      {{- end }}
      lifecycle:
        preStop:
          exec:
            {{- /* Until the endpoints have forgotten this pod. */}}
            command: [sleep, "5"]
      {{- $gpu := .Values.gpu.enabled }}
      {{- $requests := dict "cpu" (ternary "1" "2" $gpu) "memory" (ternary "2Gi" "1Gi" $gpu) }}
      {{- $limits := dict "memory" (ternary "4Gi" "2Gi" $gpu) }}
      {{- if $gpu }}{{ $_ := set $limits .Values.gpu.resource "1" }}{{ end }}
      resources: {{ .Values.resources | default (dict "requests" $requests "limits" $limits) | toYaml | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        {{- if $volume }}
        - name: models
          mountPath: /models
          readOnly: true
        {{- end }}
        {{- if .Values.learning.enabled }}
        - name: labels
          mountPath: /labels
        {{- end }}
        {{- if .Values.tokenizers.volume }}
        - name: tokenizers
          mountPath: /tokenizers
          readOnly: true
        {{- end }}
        {{- if .Values.tls.enabled }}
        - name: tls
          mountPath: /etc/lpc/tls
          readOnly: true
        {{- end }}
        {{- if include "lpc.turns" . }}
        - name: redis-password
          mountPath: /etc/lpc/redis
          readOnly: true
        {{- end }}
        - name: cache
          mountPath: /cache
        - name: socket
          mountPath: /run/lpc
        - name: tmp
          mountPath: /tmp
  volumes:
    {{- if $volume }}
    - name: models
      persistentVolumeClaim:
        claimName: {{ include "lpc.claim" . }}
    {{- end }}
    {{- if .Values.learning.enabled }}
    - name: labels
      persistentVolumeClaim:
        claimName: {{ include "lpc.prefix" . }}-labels
    {{- end }}
    {{- with .Values.tokenizers.volume }}
    - {{ merge (dict "name" "tokenizers") . | toYaml | nindent 6 | trim }}
    {{- end }}
    {{- if .Values.tls.enabled }}
    - name: tls
      secret:
        secretName: {{ .Values.tls.secret | default (printf "%s-predictor-tls" (include "lpc.prefix" .)) }}
        defaultMode: 0440
    {{- end }}
    {{- if include "lpc.turns" . }}
    {{- $items := list (dict "key" "password" "path" "password") }}
    - name: redis-password
      secret: {{ dict "secretName" (include "lpc.redisSecret" .) "defaultMode" 0440 "items" $items | toYaml | nindent 8 }}
    {{- end }}
    - {{ merge (dict "name" "cache") (.Values.cache.volume | default (dict "emptyDir" (dict "sizeLimit" .Values.cache.size))) | toYaml | nindent 6 | trim }}
    - name: socket
      emptyDir:
        medium: Memory
        sizeLimit: 1Mi
    - name: tmp
      emptyDir:
        sizeLimit: 512Mi
{{- end -}}
