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
{{- $selector := $spec.podSelector | default $spec.selector | default dict }}
{{- $selected := list $selector.matchLabels (ternary $selector nil (eq $object.kind "Service")) (dig "metadata" "labels" nil $pod) }}
{{- range compact $selected }}
{{- $_ := set . "app.kubernetes.io/instance" $root.Release.Name }}
{{- end }}
{{- if eq $object.kind "NetworkPolicy" }}
{{- include "lpc.peers" (list $root $spec) }}
{{- end }}
{{- if $pod }}
{{- $_ := set $pod.metadata.labels "app.kubernetes.io/part-of" "learned-prefix-cache" }}
{{- range $pod.spec.topologySpreadConstraints }}
{{- $_ := set .labelSelector.matchLabels "app.kubernetes.io/instance" $root.Release.Name }}
{{- end }}
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
