{{/*
The rules of a role in admission/roles.yaml, so that none is written twice.

root, role; about: "" is all of them, "*" those that hold for objects of any name, and a resource
those that hold for some objects of it by their names; resource: only those about it.
*/}}
{{- define "redrive.rules" -}}
{{- $found := list -}}
{{- range splitList "\n---\n" (.root.Files.Get "files/admission/roles.yaml") -}}
{{- $role := fromYaml . -}}
{{- if eq $role.metadata.name $.role -}}
{{- range $role.rules -}}
{{- $named := hasKey . "resourceNames" -}}
{{- $wanted := or (eq $.about "") (and (eq $.about "*") (not $named)) (and $named (has $.about .resources)) -}}
{{- if and $wanted (or (not $.resource) (has $.resource .resources)) -}}
{{- $found = append $found . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "admission/roles.yaml has no rules of %s about %q" .role .about) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/*
A role with its binding to an account in the release's namespace. root, name, account, rules
(YAML); namespace (none: in the whole cluster).
*/}}
{{- define "redrive.grant" -}}
{{- $metadata := include "redrive.metadata" (dict "root" .root "name" .name "namespace" .namespace) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .namespace | empty | ternary "ClusterRole" "Role" }}
metadata:
  {{- $metadata | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .namespace | empty | ternary "ClusterRoleBinding" "RoleBinding" }}
metadata:
  {{- $metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .namespace | empty | ternary "ClusterRole" "Role" }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
