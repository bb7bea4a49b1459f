{{/* The settings of `redrive controller`. One that is empty, or that extraEnv sets, is left out. */}}
{{- define "redrive.environment" -}}
{{- $names := include "redrive.fullname" . -}}
{{- $on := dict
  "REDRIVE_WATCH_NAMESPACES" (.Values.watchNamespaces | uniq | join ",")
  "REDRIVE_CLUSTER_ID" .Values.clusterId
  "REDRIVE_POLL_INTERVAL" .Values.pollInterval
  "REDRIVE_RELEASE_AFTER" .Values.releaseAfter
  "REDRIVE_ALLOW_LOCAL_BROKERS" (.Values.allowLocalBrokers | ternary "true" "")
  "REDRIVE_CLUSTER_WIDE_RIGHTS" (.Values.rabbitmqClusters.clusterWideRights | ternary "true" "")
  "REDRIVE_EVENTS_SECRET" (.Values.brokerEvents.secrets | join ",")
  "REDRIVE_EVENTS_VHOST" (.Values.brokerEvents.secrets | empty | ternary "" .Values.brokerEvents.vhost)
  "REDRIVE_HEALTH_ADDRESS" (printf "%s:%v" .Values.bindAddress .Values.health.port)
  "REDRIVE_METRICS_ADDRESS" (.Values.metrics.enabled | ternary (printf "%s:%v" .Values.bindAddress .Values.metrics.port) "")
  "REDRIVE_LEADER_ELECT" (.Values.leaderElection.enabled | ternary "true" "")
  "REDRIVE_LEASE_NAME" (.Values.leaderElection.enabled | ternary (.Values.leaderElection.leaseName | default $names) "")
  "REDRIVE_REPLAY_RUNNER" .Values.replays.runner
  "REDRIVE_REPLAY_IMAGE" (.Values.replays.image | default (include "redrive.image" .))
  "REDRIVE_REPLAY_SERVICE_ACCOUNT" (include "redrive.workerAccount" .)
  "REDRIVE_REPLAY_HOST_NETWORK" (.Values.replays.hostNetwork | ternary "true" "")
  "REDRIVE_AUDIT_VHOST" .Values.replays.audit.vhost
  "REDRIVE_AUDIT_SECRET" .Values.replays.audit.secret
  "REDRIVE_ALLOW_UNVERIFIED_APPROVAL" (.Values.replays.allowUnverifiedApproval | ternary "true" "")
  "REDRIVE_LOG" .Values.log.filter
  "REDRIVE_LOG_FORMAT" .Values.log.format
  "OTEL_EXPORTER_OTLP_ENDPOINT" .Values.traces.endpoint
-}}
{{- $others := list -}}
{{- range .Values.extraEnv -}}
{{- $others = append $others .name -}}
{{- end -}}
{{- $variables := list -}}
{{- range $name, $value := $on -}}
{{- if and $value (not (has $name $others)) -}}
{{- $variables = append $variables (dict "name" $name "value" $value) -}}
{{- end -}}
{{- end -}}
{{- concat $variables .Values.extraEnv | toYaml -}}
{{- end -}}

{{/* What no schema can say: values that don't go together. */}}
{{- define "redrive.refuse" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.leaderElection.enabled) -}}
{{- fail "replicas: more than one operator needs leaderElection.enabled, or all of them would write" -}}
{{- end -}}
{{- if ne (empty .Values.replays.audit.vhost) (empty .Values.replays.audit.secret) -}}
{{- fail "replays.audit: the stream needs both vhost and secret" -}}
{{- end -}}
{{- if and .Values.metrics.enabled (eq (int .Values.metrics.port) (int .Values.health.port)) -}}
{{- fail "health.port: has to be another one than metrics.port" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "serviceMonitor.enabled: there is nothing to scrape without metrics.enabled" -}}
{{- end -}}
{{- if and .Values.rbac.readPolicies (not .Values.watchNamespaces) -}}
{{- fail "rbac.readPolicies: is only for watchNamespaces; an operator that watches all namespaces has that right" -}}
{{- end -}}
{{- end -}}
