{{/*
The objects of a file of the kustomize base, to which this chart links, with this release's names, labels and image.
Takes a list: the root, the file, the image of the file's containers, and by kind what is laid over an object.
*/}}
{{- define "lpc.shared" -}}
{{- $root := index . 0 }}{{ $file := index . 1 }}{{ $image := index . 2 }}{{ $over := index . 3 }}
{{- $prefix := include "lpc.prefix" $root }}
{{- $text := $root.Files.Get (printf "files/%s" $file) | required (printf "files/%s is not in the chart" $file) }}
{{- $text = regexReplaceAll `\blpc-(predictor|redis|models|labels|export|retrain|trainer|gateway|caches|response-cache)` $text (printf "%s-${1}" $prefix) }}
{{- $text = regexReplaceAll (printf `(app\.kubernetes\.io/name: )%s-` $prefix) $text "${1}lpc-" }}
{{- range regexSplit `(?m)^---$` $text -1 }}
{{- $object := fromYaml . }}
{{- if $object.kind }}
{{- $object = mergeOverwrite $object (deepCopy (get $over $object.kind | default dict)) }}
{{- $spec := $object.spec | default dict }}
{{- $_ := set $object.metadata "labels" (merge (include "lpc.labels" $root | fromYaml) ($object.metadata.labels | default dict)) }}
{{- $pod := dig "jobTemplate" "spec" "template" ($spec.template | default dict) $spec }}
{{- include "lpc.selectors" (list (include "lpc.instance" $root) $object) }}
{{- if eq $object.kind "Service" }}{{ $_ := set $spec.selector "app.kubernetes.io/instance" (include "lpc.instance" $root) }}{{ end }}
{{- if eq $object.kind "NetworkPolicy" }}
{{- include "lpc.peers" (list $root $spec) }}
{{- end }}
{{- if $pod }}
{{- $own := dict "app.kubernetes.io/instance" (include "lpc.instance" $root) "app.kubernetes.io/part-of" "learned-prefix-cache" }}
{{- $_ := set $pod.metadata "labels" (merge $own $pod.metadata.labels ($root.Values.commonLabels | default dict)) }}
{{- include "lpc.pod" (list $root $pod.spec) }}
{{- range concat ($pod.spec.initContainers | default list) $pod.spec.containers }}
{{- $_ := set . "image" $image }}
{{- end }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end -}}

{{/*
Restricts every selector of the chart's own pods to this release, in place: of peers in NetworkPolicies, of affinities and others.
What a user names in the values, with an instance or in other namespaces, stays. Takes a list: the instance, an object.
*/}}
{{- define "lpc.selectors" -}}
{{- $instance := index . 0 }}{{ $value := index . 1 }}
{{- if kindIs "map" $value }}
{{- $labels := $value.matchLabels | default dict }}
{{- if regexMatch "^lpc-(predictor|redis|redis-form|gateway|gateway-warm|caches|response-cache|trainer)$" (get $labels "app.kubernetes.io/name") }}
{{- if not (hasKey $labels "app.kubernetes.io/instance") }}{{ $_ := set $labels "app.kubernetes.io/instance" $instance }}{{ end }}
{{- end }}
{{- range $key, $one := $value }}
{{- if not (and (eq $key "podSelector") (hasKey $value "namespaceSelector")) }}{{ include "lpc.selectors" (list $instance $one) }}{{ end }}
{{- end }}
{{- else if kindIs "slice" $value }}
{{- range $value }}{{ include "lpc.selectors" (list $instance .) }}{{ end }}
{{- end }}
{{- end -}}

{{/* Names in a NetworkPolicy's spec, in place, who scrapes and who knows the cluster's names. Takes a list: the root, the spec. */}}
{{- define "lpc.peers" -}}
{{- $root := index . 0 }}{{ $spec := index . 1 }}
{{- $name := "kubernetes.io/metadata.name" }}
{{- range $rule := $spec.ingress }}
{{- range $rule.from }}
{{- if eq (dig "namespaceSelector" "matchLabels" $name "" .) "monitoring" }}
{{- $_ := set .namespaceSelector.matchLabels $name $root.Values.networkPolicy.monitoringNamespace }}
{{- end }}
{{- end }}
{{- end }}
{{- if $root.Values.openshift }}
{{- range $rule := $spec.egress }}
{{- range $rule.to }}
{{- if eq (dig "namespaceSelector" "matchLabels" $name "" .) "kube-system" }}
{{- /* Where its DNS pods are, and the port that they listen on. */}}
{{- $_ := set .namespaceSelector.matchLabels $name "openshift-dns" }}
{{- range $rule.ports }}{{ $_ := set . "port" 5353 }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Changes a pod's spec in place, as the values say for all pods. Takes a list: the root, the spec. */}}
{{- define "lpc.pod" -}}
{{- $root := index . 0 }}{{ $spec := index . 1 }}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end }}
{{- if $root.Values.openshift }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" "fsGroupChangePolicy" }}{{ $_ := unset $spec.securityContext . }}{{ end }}
{{- end }}
{{- end -}}

{{/* Makes a pod take another secret, in place. Takes a list: the pod's spec, the name of the secret, the name of the other one. */}}
{{- define "lpc.secret" -}}
{{- $spec := index . 0 }}{{ $old := index . 1 }}{{ $new := index . 2 }}
{{- range $spec.volumes }}
{{- if eq (dig "secret" "secretName" "" .) $old }}{{ $_ := set .secret "secretName" $new }}{{ end }}
{{- end }}
{{- range $container := $spec.containers }}
{{- range $container.env }}
{{- if eq (dig "valueFrom" "secretKeyRef" "name" "" .) $old }}{{ $_ := set .valueFrom.secretKeyRef "name" $new }}{{ end }}
{{- end }}
{{- end }}
{{- end -}}
