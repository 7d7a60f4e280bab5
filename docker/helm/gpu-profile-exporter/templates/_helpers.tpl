{{- /* A Service accepts no dots. */ -}}
{{- define "exporter.name" -}}
{{- .Release.Name | replace "." "-" | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "exporter.selector" -}}
app.kubernetes.io/name: gpu-profile-exporter
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "exporter.labels" -}}
{{ include "exporter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
