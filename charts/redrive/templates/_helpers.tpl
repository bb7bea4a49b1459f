{{- define "redrive.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The prefix of all names; short enough for what is put behind it. */}}
{{- define "redrive.fullname" -}}
{{- $name := include "redrive.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The operator's pods. Workers have the same name of the application, and another component. */}}
{{- define "redrive.selector" -}}
app.kubernetes.io/name: {{ include "redrive.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{/* The workers' pods, as the operator labels them. */}}
{{- define "redrive.workerSelector" -}}
app.kubernetes.io/name: redrive
app.kubernetes.io/component: replay-worker
{{- end -}}

{{- define "redrive.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "redrive.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: redrive
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/*
The metadata of an object. root, name; namespace (none: an object of the cluster), labels and
annotations beside the common ones.
*/}}
{{- define "redrive.metadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- mustMerge (include "redrive.labels" .root | fromYaml) (.labels | default dict) .root.Values.commonLabels | toYaml | nindent 2 }}
{{- with mustMerge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "redrive.image" -}}
{{- $image := .Values.image -}}
{{- $registry := .Values.global.imageRegistry | default $image.registry -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* As objects, with the global ones; each once. */}}
{{- define "redrive.pullSecrets" -}}
{{- $secrets := list -}}
{{- range concat .Values.imagePullSecrets .Values.global.imagePullSecrets -}}
{{- $secrets = append $secrets (kindIs "map" . | ternary . (dict "name" .)) -}}
{{- end -}}
{{- if $secrets -}}
imagePullSecrets:
  {{- $secrets | uniq | toYaml | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "redrive.account" -}}
{{- $fallback := .Values.serviceAccount.create | ternary (include "redrive.fullname" .) "default" -}}
{{- .Values.serviceAccount.name | default $fallback -}}
{{- end -}}

{{/* The one name that the admission policies know. */}}
{{- define "redrive.workerAccount" -}}redrive-replay-worker{{- end -}}

{{/* An address of the node's own is not the pod's, which the kubelet would ask. */}}
{{- define "redrive.probedAt" -}}
{{- if not (has .Values.bindAddress (list "0.0.0.0" "[::]")) -}}
host: {{ .Values.bindAddress | trimPrefix "[" | trimSuffix "]" | quote }}
{{- end -}}
{{- end -}}
