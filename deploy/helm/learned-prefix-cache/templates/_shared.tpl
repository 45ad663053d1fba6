{{/*
The objects of a file of the kustomize base, to which this chart links, with this release's names, labels and image.
Takes a list: the root, the file, the image of the file's containers, and by kind what is laid over an object.
*/}}
{{- define "lpc.shared" -}}
{{- $root := index . 0 }}{{ $file := index . 1 }}{{ $image := index . 2 }}{{ $over := index . 3 }}
{{- $prefix := include "lpc.prefix" $root }}
{{- $text := $root.Files.Get (printf "files/%s" $file) | required (printf "files/%s is not in the chart" $file) }}
{{- $text = regexReplaceAll `\blpc-(predictor|redis|models|labels|export|retrain|trainer|gateway|response-cache)` $text (printf "%s-${1}" $prefix) }}
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
{{- if $pod }}
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

{{/* Changes a pod's spec in place, as the values say for all pods. Takes a list: the root, the spec. */}}
{{- define "lpc.pod" -}}
{{- $root := index . 0 }}{{ $spec := index . 1 }}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end }}
{{- if $root.Values.openshift }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" "fsGroupChangePolicy" }}{{ $_ := unset $spec.securityContext . }}{{ end }}
{{- end }}
{{- end -}}
