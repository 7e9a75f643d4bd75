{{- /* Templates that take a part take (list . "registry"), with registry, nats or worker. */ -}}

{{- define "execagent.name" -}}
{{- printf "%s-%s" ((index . 0).Release.Name | trunc 40 | trimSuffix "-") (index . 1) -}}
{{- end -}}

{{- define "execagent.selector" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- define "execagent.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "execagent.name" . }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "execagent.selector" . | nindent 2 }}
  app.kubernetes.io/part-of: execagent
  app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- /* --set, and YAML without quotes, make numbers of what looks like one. */ -}}
{{- define "execagent.text" -}}
{{- if or (kindIs "string" .) (kindIs "bool" .) }}{{ . }}{{ else }}{{ int64 . }}{{ end -}}
{{- end -}}

{{- define "execagent.image" -}}
{{- $image := index . 1 -}}
image: {{ printf "%s:%s" $image.repository (include "execagent.text" ($image.tag | default (index . 0).Chart.AppVersion)) }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end -}}

{{- define "execagent.pod" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with (index $root.Values $part).nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index $root.Values $part).tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: {{ eq $part "nats" | ternary "DoNotSchedule" "ScheduleAnyway" }}
    labelSelector:
      matchLabels: {{- include "execagent.selector" . | nindent 8 }}
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "execagent.selector" . | nindent 8 }}
{{- end -}}

{{- define "execagent.user" -}}
runAsNonRoot: true
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end -}}

{{- define "execagent.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Of the worker's containers in which commands run, or are tried. */ -}}
{{- define "execagent.confined" -}}
{{- include "execagent.hardened" . }}
{{- with .Values.worker.userNamespaces }}
{{- if .enabled }}
procMount: Unmasked
seccompProfile: {type: Localhost, localhostProfile: {{ .profile }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "execagent.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "execagent.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "execagent.selector" . | nindent 6 }}
{{- end -}}

{{- define "execagent.dns" -}}
- to:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: kube-system}
      podSelector:
        matchLabels: {k8s-app: kube-dns}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end -}}

{{- define "execagent.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ index . 0 }}
spec:
  accessModes: [ReadWriteOnce]
  {{- with (index . 1).className }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ (index . 1).size }}}
{{- end -}}
