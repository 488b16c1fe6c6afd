{{- define "qualify.labels" -}}
app.kubernetes.io/name: qualify
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "qualify.pod" -}}
serviceAccountName: {{ .Release.Name }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
volumes:
  - {name: home, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
  - name: cards
    configMap: {name: {{ .Release.Name }}-cards}
{{- with .Values.database.passwordSecret }}
{{- if .name }}
  - name: password
    secret: {secretName: {{ .name | quote }}, items: [{key: {{ .key | quote }}, path: password}]}
{{- end }}
{{- end }}
{{- with .Values.secretFiles }}
  - name: secrets
    secret: {secretName: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "qualify.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
workingDir: /var/lib/qualify
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: home, mountPath: /var/lib/qualify}
  - {name: tmp, mountPath: /tmp}
  - {name: cards, mountPath: /etc/qualify/cards, readOnly: true}
{{- if .Values.database.passwordSecret.name }}
  - {name: password, mountPath: /run/secrets/database, readOnly: true}
{{- end }}
{{- if .Values.secretFiles }}
  - {name: secrets, mountPath: /run/secrets/qualify, readOnly: true}
{{- end }}
{{- end }}

{{- define "qualify.environment" -}}
- {name: QUALIFY_DB, value: {{ .Values.database.url | quote }}}
- {name: HOME, value: /var/lib/qualify}
{{- if .Values.database.passwordSecret.name }}
- {name: QUALIFY_DB_PASSWORD_FILE, value: /run/secrets/database/password}
{{- end }}
{{- end }}

{{- define "qualify.worker" -}}
- {name: QUALIFY_IMAGE, value: {{ .Values.images.worker | quote }}}
- {name: QUALIFY_CONTAINER, value: qualify}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end }}
