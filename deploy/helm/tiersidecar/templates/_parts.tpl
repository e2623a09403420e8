{{- define "tiersidecar.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tiersidecar.labels" -}}
app.kubernetes.io/name: tiersidecar
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tiersidecar.image" -}}
{{ .image.repository }}:{{ .image.tag | default .appVersion }}
{{- end }}

{{/* As the broker's user, and with nothing else. */}}
{{- define "tiersidecar.securityContext" -}}
runAsUser: {{ .Values.broker.uid }}
runAsGroup: {{ .Values.broker.gid }}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Alive means that the process answers. */}}
{{- define "tiersidecar.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: status}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: status}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
{{- end }}

{{/* The broker's volume, once, whole and at the broker's path: hard links across two mounts fail. */}}
{{- define "tiersidecar.mounts" -}}
- {name: tiersidecar-config, mountPath: /etc/tiersidecar, readOnly: true}
- {name: tiersidecar-state, mountPath: {{ index .Values.config "state.dir" | default "/var/lib/tiersidecar" }}}
- {name: tiersidecar-tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tiersidecar.volumes" -}}
- name: tiersidecar-state
  emptyDir: {sizeLimit: {{ .Values.sidecar.state.sizeLimit }}}
- name: tiersidecar-tmp
  emptyDir: {sizeLimit: 100Mi}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Beside broker .id, on its node and volume. */}}
{{- define "tiersidecar.besideBroker" -}}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{ .Values.broker.podLabel }}: {{ .Values.broker.pod | replace "{id}" (toString .id) }}
{{- end }}

{{- define "tiersidecar.listener" -}}
{{- $pattern := printf "%s-gateway-{node.id}.%s:%d" (include "tiersidecar.name" .) .Release.Namespace (int .Values.gateway.port) -}}
{{- $listener := dict "name" "GATEWAY" "listen" (printf "0.0.0.0:%d" (int .Values.gateway.port)) "advertised.pattern" (.Values.gateway.advertisedPattern | default $pattern) -}}
{{ toYaml (list (merge (deepCopy .Values.gateway.listener) $listener)) }}
{{- end }}
