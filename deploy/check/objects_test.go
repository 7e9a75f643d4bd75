package check

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// workload is a Deployment or a StatefulSet.
type workload struct {
	metav1.ObjectMeta
	kind     string
	replicas *int32
	selector *metav1.LabelSelector
	pod      corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
	service  string
}

// part is what the workload is: registry, worker or nats.
func (w workload) part() string { return w.Labels["app.kubernetes.io/name"] }

// containers are all of a pod, those first that run first.
func (w workload) containers() []corev1.Container {
	return slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers)
}

// port returns the number of a port of the pod, by number or name.
func (w workload) port(p intstr.IntOrString) (number int32, ok bool) {
	for _, c := range w.pod.Spec.Containers {
		for _, have := range c.Ports {
			if p.Type == intstr.String && have.Name == p.StrVal || p.Type == intstr.Int && have.ContainerPort == p.IntVal {
				return have.ContainerPort, true
			}
		}
	}
	return 0, false
}

// workloads returns what runs pods, by part.
func workloads(r rendered) map[string]workload {
	found := map[string]workload{}
	for _, d := range all[*appsv1.Deployment](r) {
		w := workload{d.ObjectMeta, "Deployment", d.Spec.Replicas, d.Spec.Selector, d.Spec.Template, nil, ""}
		found[w.part()] = w
	}
	for _, s := range all[*appsv1.StatefulSet](r) {
		w := workload{s.ObjectMeta, "StatefulSet", s.Spec.Replicas, s.Spec.Selector, s.Spec.Template, s.Spec.VolumeClaimTemplates, s.Spec.ServiceName}
		found[w.part()] = w
	}
	return found
}

// selects tells which of the workloads a selector is for.
func selects(t *testing.T, r rendered, s *metav1.LabelSelector) (parts []string) {
	t.Helper()
	selector := value(metav1.LabelSelectorAsSelector(s))
	not(t, selector.Empty(), "%s: a selector selects everything", r.name)
	for part, w := range workloads(r) {
		if selector.Matches(labels.Set(w.pod.Labels)) {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return parts
}

// only fails unless a selector of a part's object selects that part alone.
func only(t *testing.T, r rendered, o metav1.Object, s *metav1.LabelSelector) workload {
	t.Helper()
	part := o.GetLabels()["app.kubernetes.io/name"]
	got := selects(t, r, s)
	not(t, len(got) != 1 || got[0] != part, "%s: %T %s selects %q, want %q", r.name, o, o.GetName(), got, part)
	return workloads(r)[part]
}

// TestPods: the pods run without root, privileges, capabilities, a writable root and a token of the
// cluster, as the restricted level of the Pod Security Standards and more demands. Only a worker
// with user namespaces has another filter and sees all of its /proc.
func TestPods(t *testing.T) {
	t.Parallel()
	for r, w := range each(t, "") {
		part := w.part()
		where := r.name + ": " + part
		pod := w.pod.Spec
		s := pod.SecurityContext
		if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 || s.RunAsGroup == nil || *s.RunAsGroup == 0 ||
			s.FSGroup == nil || *s.FSGroup != *s.RunAsGroup || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: the pod's security context is %+v", where, s)
		}
		not(t, pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken,
			"%s: the pod gets a token of the cluster", where)
		not(t, pod.HostNetwork || pod.HostPID || pod.HostIPC || pod.EnableServiceLinks == nil || *pod.EnableServiceLinks,
			"%s: the pod shares namespaces of the node, or gets variables of services", where)
		own := pod.HostUsers != nil && !*pod.HostUsers
		not(t, own && part != "worker", "%s: hostUsers is false", where)
		spread := pod.TopologySpreadConstraints
		not(t, len(spread) != 2, "%s: %d constraints on where pods are", where, len(spread))
		for _, c := range spread {
			only(t, r, &w, c.LabelSelector)
		}
		volumes := map[string]corev1.Volume{}
		for _, v := range pod.Volumes {
			volumes[v.Name] = v
			not(t, v.HostPath != nil, "%s: volume %s is a folder of the node", where, v.Name)
			not(t, v.EmptyDir != nil && (v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.IsZero()),
				"%s: volume %s has no limit", where, v.Name)
		}
		for _, claim := range w.claims {
			volumes[claim.Name] = corev1.Volume{}
		}
		for _, c := range w.containers() {
			checkContainer(t, where+": "+c.Name, c, own && c.Name != "install")
			for _, m := range c.VolumeMounts {
				_, ok := volumes[m.Name]
				not(t, !ok, "%s: %s mounts %s, which is no volume", where, c.Name, m.Name)
			}
			for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				if p == nil {
					continue
				}
				_, ok := w.port(p.HTTPGet.Port)
				not(t, !ok, "%s: %s is probed at a port that it does not have", where, c.Name)
			}
		}
	}
}

// checkContainer checks what holds for each container. With own it may see all of /proc, and has
// the profile that allows namespaces.
func checkContainer(t *testing.T, where string, c corev1.Container, own bool) {
	t.Helper()
	s := c.SecurityContext
	if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
		s.Privileged != nil || s.RunAsUser != nil || s.RunAsNonRoot != nil {
		t.Errorf("%s: the security context is %+v", where, s)
		return
	}
	not(t, s.Capabilities == nil || len(s.Capabilities.Add) > 0 || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}),
		"%s: the capabilities are %+v", where, s.Capabilities)
	switch {
	case !own && (s.ProcMount != nil || s.SeccompProfile != nil):
		t.Errorf("%s: the security context is %+v", where, s)
	case own && (s.ProcMount == nil || *s.ProcMount != corev1.UnmaskedProcMount || s.SeccompProfile == nil ||
		s.SeccompProfile.Type != corev1.SeccompProfileTypeLocalhost || s.SeccompProfile.LocalhostProfile == nil || !strings.HasSuffix(*s.SeccompProfile.LocalhostProfile, "/seccomp-agent.json")):
		t.Errorf("%s: the security context is %+v", where, s)
	}
	_, tag, ok := strings.Cut(c.Image, ":")
	not(t, !ok || tag == "" || tag == "latest", "%s: the image %q has no version", where, c.Image)
	not(t, c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero(),
		"%s: the resources are %v", where, c.Resources)
	seen := map[string]bool{}
	for _, e := range c.Env {
		not(t, seen[e.Name], "%s: %s is set twice", where, e.Name)
		seen[e.Name] = true
	}
}

// TestProbes: registry and worker are probed for what they answer.
func TestProbes(t *testing.T) {
	t.Parallel()
	for r, w := range each(t, "") {
		part, c := w.part(), w.pod.Spec.Containers[0]
		want := map[*corev1.Probe]string{c.StartupProbe: "/healthz", c.ReadinessProbe: "/readyz", c.LivenessProbe: "/healthz"}
		if part == "nats" {
			want = map[*corev1.Probe]string{c.StartupProbe: "/healthz", c.ReadinessProbe: "/healthz?js-server-only=true", c.LivenessProbe: "/healthz?js-enabled-only=true"}
		}
		for p, of := range want {
			not(t, p == nil || p.HTTPGet == nil || p.HTTPGet.Path != of,
				"%s: %s has the probe %+v, want one of %s", r.name, part, p, of)
		}
	}
}

// TestSecrets: the programs get keys from Secrets. No key stands in a manifest. Where a Secret is a
// volume, its files can be read by the group of the programs, and by nobody outside of it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	secret := map[string][]string{"registry": {"REGISTRY_NATS_URL"}, "worker": {"CODEX_API_KEY", "AGENT_API_KEY_FILE"}, "nats": {"NATS_PASSWORD"}}
	for r, w := range each(t, "") {
		part, seen := w.part(), 0
		for _, c := range w.containers() {
			for _, e := range c.Env {
				if slices.Contains(secret[part], e.Name) {
					byFile := strings.HasSuffix(e.Name, "_FILE") && inSecret(w, c, e.Value)
					if byFile || e.Value == "" && e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name != "" {
						seen++
					}
					not(t, c.Name != w.pod.Spec.Containers[0].Name, "%s: %s of %s has %s too", r.name, c.Name, part, e.Name)
				}
				not(t, strings.Contains(e.Value, "xa_"), "%s: a variable of %s holds a key", r.name, part)
			}
			not(t, strings.Contains(strings.Join(c.Args, " "), "xa_"), "%s: an argument of %s holds a key", r.name, part)
		}
		not(t, seen != 1, "%s: %d of %q are from a Secret, want one", r.name, seen, secret[part])
		for _, v := range w.pod.Spec.Volumes {
			not(t, v.Secret != nil && (v.Secret.DefaultMode == nil || *v.Secret.DefaultMode != 0o440),
				"%s: %s: the Secret of %s is mounted with another mode than 0440", r.name, part, v.Name)
		}
	}
}

// inSecret reports whether a file is one of a Secret that is mounted.
func inSecret(w workload, c corev1.Container, file string) bool {
	for _, m := range c.VolumeMounts {
		for _, v := range w.pod.Spec.Volumes {
			if m.Name == v.Name && m.MountPath == path.Dir(file) && m.ReadOnly && v.Secret != nil && len(v.Secret.Items) == 1 && v.Secret.Items[0].Path == path.Base(file) {
				return true
			}
		}
	}
	return false
}

// help returns what the server of a program says of its flags.
var help = map[string]func() (string, error){
	"registry": sync.OnceValues(func() (string, error) { return output("registry", "serve", "--help") }),
	"worker":   sync.OnceValues(func() (string, error) { return output("agent", "exec-server", "--help") }),
}

// program returns the path of a program that make build has built.
func program(name string) string {
	if dir := os.Getenv("E2E_PROGRAMS"); dir != "" {
		return filepath.Join(dir, name)
	}
	return filepath.Join("../../bin", name)
}

func output(name string, args ...string) (string, error) {
	file, err := filepath.Abs(program(name))
	if err != nil {
		return "", err
	}
	out, err := exec.Command(file, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s (make build builds it): %w", name, err)
	}
	return string(out), nil
}

// known fails unless the server of a part has a flag, or a variable that is written with $.
func known(t *testing.T, where, part, name string) {
	t.Helper()
	text, err := help[part]()
	must(t, err)
	not(t, !regexp.MustCompile(`(?m)(^|[ (])`+regexp.QuoteMeta(name)+`([ =,)]|$)`).MatchString(text),
		"%s sets %s, which the program does not know", where, name)
}

// TestNames: the programs know the variables and flags that the manifests set, and the commands.
func TestNames(t *testing.T) {
	t.Parallel()
	for part, prefix := range map[string]string{"registry": "REGISTRY_", "worker": "AGENT_"} {
		for r, w := range each(t, part) {
			c := w.pod.Spec.Containers[0]
			count := 0
			for _, e := range c.Env {
				if strings.HasPrefix(e.Name, prefix) {
					count++
					known(t, r.name, part, "$"+e.Name)
				}
			}
			for _, argument := range c.Args {
				count++
				name, _, _ := strings.Cut(argument, "=")
				known(t, r.name, part, name)
			}
			not(t, count < 4, "%s: %s has %d flags and variables", r.name, part, count)
		}
	}
	commands, err := output("agent", "--help")
	must(t, err)
	for _, command := range []string{"install", "doctor", "health"} {
		not(t, !regexp.MustCompile(`(?m)^  `+command+` `).MatchString(commands), "the agent has no command %s", command)
	}
}

// variable returns the value of a container's variable.
func variable(c corev1.Container, name string) (value string, ok bool) {
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	if i < 0 {
		return "", false
	}
	return c.Env[i].Value, true
}

// TestDrain: between SIGTERM and SIGKILL Kubernetes waits at least 10 s longer than the registry
// drains.
func TestDrain(t *testing.T) {
	t.Parallel()
	for r, w := range each(t, "registry") {
		text, _ := variable(w.pod.Spec.Containers[0], "REGISTRY_DRAIN_TIMEOUT")
		drain := value(time.ParseDuration(text))
		grace := time.Duration(*w.pod.Spec.TerminationGracePeriodSeconds) * time.Second
		not(t, grace < drain+10*time.Second, "%s: the pod ends %v after SIGTERM, the drain takes up to %v", r.name, grace, drain)
	}
}

// TestWorker: a worker runs the agent that its first container has put beside the tools, after the
// doctor has been asked in the same circumstances.
func TestWorker(t *testing.T) {
	t.Parallel()
	for r, w := range each(t, "worker") {
		containers := w.containers()
		if len(containers) != 3 || containers[0].Name != "install" || containers[1].Name != "doctor" || containers[2].Name != "agent" {
			t.Errorf("%s: containers are %+v", r.name, containers)
			continue
		}
		install, doctor, agent := containers[0], containers[1], containers[2]
		if !slices.Equal(install.Args, []string{"install", "/agent"}) || doctor.Command[0] != "/agent/agent" || doctor.Command[1] != "doctor" || agent.Command[0] != "/agent/agent" {
			t.Errorf("%s: commands are %q, %q, %q", r.name, install.Args, doctor.Command, agent.Command)
		}
		if doctor.Image != agent.Image || doctor.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError ||
			fmt.Sprint(doctor.SecurityContext) == "" || asJSON(doctor.SecurityContext) != asJSON(agent.SecurityContext) {
			t.Errorf("%s: the doctor is asked in other circumstances than those of commands", r.name)
		}
		mounts := map[string]corev1.VolumeMount{}
		for _, m := range agent.VolumeMounts {
			mounts[m.MountPath] = m
		}
		home, _ := variable(agent, "HOME")
		if m := mounts[agent.WorkingDir]; len(w.claims) != 1 || m.Name != w.claims[0].Name || m.ReadOnly {
			t.Errorf("%s: the working directory %q is no volume that is kept", r.name, agent.WorkingDir)
		}
		not(t, mounts[home].Name == "" || mounts["/tmp"].Name == "" || !mounts["/agent"].ReadOnly,
			"%s: HOME, /tmp and the agent have the mounts %v", r.name, mounts)
		service, ok := all[*corev1.Service](r)[w.service]
		not(t, !ok || service.Spec.ClusterIP != corev1.ClusterIPNone,
			"%s: the StatefulSet's service %q is no headless one", r.name, w.service)
	}
}

// TestReferences: services, budgets, monitors, ingresses and autoscalers are about what is there.
func TestReferences(t *testing.T) {
	t.Parallel()
	for _, r := range everything(t) {
		for name, s := range all[*corev1.Service](r) {
			w := only(t, r, s, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
			for _, p := range s.Spec.Ports {
				_, ok := w.port(p.TargetPort)
				not(t, !ok, "%s: the service %s leads to the port %v, which the pod does not have", r.name, name, p.TargetPort)
			}
		}
		budgets := all[*policyv1.PodDisruptionBudget](r)
		for part, w := range workloads(r) {
			b, ok := budgets[w.Name]
			if !ok || b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntVal != 1 {
				t.Errorf("%s: %s has no budget of one pod", r.name, part)
				continue
			}
			only(t, r, b, b.Spec.Selector)
			got := selects(t, r, w.selector)
			not(t, !slices.Equal(got, []string{part}), "%s: %s selects pods of %q", r.name, part, got)
		}
		for name, i := range all[*networkingv1.Ingress](r) {
			for _, rule := range i.Spec.Rules {
				if len(i.Spec.TLS) != 1 || !slices.Equal(i.Spec.TLS[0].Hosts, []string{rule.Host}) || rule.Host != "registry.example.com" {
					t.Errorf("%s: the ingress %s has TLS for %v and the host %q", r.name, name, i.Spec.TLS, rule.Host)
				}
				for _, p := range rule.HTTP.Paths {
					s, ok := all[*corev1.Service](r)[p.Backend.Service.Name]
					not(t, !ok || s.Spec.Ports[0].Name != p.Backend.Service.Port.Name || p.Path != "/cloud",
						"%s: the ingress %s leads from %s to %+v", r.name, name, p.Path, p.Backend.Service)
				}
			}
		}
		scaled := all[*autoscalingv2.HorizontalPodAutoscaler](r)
		for name, h := range scaled {
			w := workloads(r)["registry"]
			if ref := h.Spec.ScaleTargetRef; ref.Kind != w.kind || ref.Name != w.Name || ref.APIVersion != "apps/v1" || *h.Spec.MinReplicas < 2 {
				t.Errorf("%s: the autoscaler %s is for %+v", r.name, name, ref)
			}
		}
		if w, ok := workloads(r)["registry"]; ok && (w.replicas == nil) != (len(scaled) == 1) {
			t.Errorf("%s: the registry has replicas %v and %d autoscalers", r.name, w.replicas, len(scaled))
		}
		for name, m := range all[*monitoringv1.ServiceMonitor](r) {
			found := false
			for _, s := range all[*corev1.Service](r) {
				found = found || matches(&m.Spec.Selector, s.Labels) && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port })
			}
			not(t, !found, "%s: the monitor %s finds no service", r.name, name)
		}
		for _, m := range all[*monitoringv1.PodMonitor](r) {
			w := only(t, r, m, &m.Spec.Selector)
			_, ok := w.port(intstr.FromString(*m.Spec.PodMetricsEndpoints[0].Port))
			not(t, !ok, "%s: the monitor %s is for a port that the pod does not have", r.name, m.Name)
		}
	}
}

// TestImageUser: the images name a user other than root, as a number: Kubernetes cannot check
// runAsNonRoot by a name. The user of the registry's image is that of its manifest, since /data
// belongs to this user.
func TestImageUser(t *testing.T) {
	t.Parallel()
	const registry = "65532"
	for r, w := range each(t, "registry") {
		user := fmt.Sprint(*w.pod.Spec.SecurityContext.RunAsUser)
		not(t, user != registry, "%s: the registry runs as %s", r.name, user)
	}
	for _, file := range []string{"../../Dockerfile", "../registry.Dockerfile"} {
		page := read(file)
		stages := strings.Split(string(page), "\nFROM ")
		users := regexp.MustCompile(`(?m)^USER ([0-9]+):([0-9]+)$`).FindAllStringSubmatch(stages[len(stages)-1], -1)
		not(t, len(users) != 1 || users[0][1] != registry || users[0][2] != registry,
			"%s: USER is %q, want %s once", file, users, registry)
	}
}

// TestVersions: the chart has the placeholder that a release replaces by its version, and the manifests, which
// are used as they are, name the newest release.
func TestVersions(t *testing.T) {
	t.Parallel()
	const placeholder = "0.0.0-dev"
	if c := loadChart(t); c.AppVersion() != placeholder || c.Metadata.Version != placeholder {
		t.Errorf("the chart has the version %s of %s, want %s", c.Metadata.Version, c.AppVersion(), placeholder)
	}
	released := regexp.MustCompile(`(?m)^## \[([0-9.]+)\]`).FindSubmatch(read("../../CHANGELOG.md"))
	for r, w := range each(t, "") {
		for _, c := range w.containers() {
			if name, tag, _ := strings.Cut(c.Image, ":"); strings.HasPrefix(name, "execagent/") && tag != placeholder && released != nil && tag != string(released[1]) {
				t.Errorf("%s: %s, want the version %s", r.name, c.Image, released[1])
			}
		}
	}
}
