// Package deploy_test checks that the manifests meet what hardened clusters demand,
// and that they set only flags and variables that the programs have.
package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// manifest has the members of a Kubernetes document that the tests look at.
// Decoding ignores all others.
type manifest struct {
	Kind string
	Spec struct {
		Replicas int
		Template struct {
			Spec struct {
				AutomountServiceAccountToken  *bool
				TerminationGracePeriodSeconds int
				SecurityContext               struct {
					RunAsNonRoot   bool
					RunAsUser      int
					SeccompProfile struct{ Type string }
				}
				Containers []container
			}
		}
	}
}

// container has the members of a container that the tests look at.
type container struct {
	Args []string
	Env  []struct {
		Name, Value string
		ValueFrom   struct {
			SecretKeyRef struct{ Name, Key string }
		}
	}
	ReadinessProbe, LivenessProbe struct {
		HTTPGet struct{ Path, Port string }
	}
	Ports []struct {
		Name          string
		ContainerPort int
	}
	SecurityContext struct {
		AllowPrivilegeEscalation *bool
		ReadOnlyRootFilesystem   bool
		Privileged               bool
		Capabilities             struct{ Drop, Add []string }
	}
}

// workloads returns the documents of a file that run containers.
func workloads(t *testing.T, file string) (found []manifest) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var m manifest
		if err := yaml.Unmarshal(document, &m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if m.Kind == "" {
			t.Fatalf("%s: a document without kind:\n%s", file, document)
		}
		if len(m.Spec.Template.Spec.Containers) > 0 {
			found = append(found, m)
		}
	}
	return found
}

// TestHardened: the pods run without root, privileges, capabilities and a writable
// root, as the restricted level of the Pod Security Standards and more demands, and
// their probes ask for what the programs answer.
func TestHardened(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"registry.yaml", "worker.yaml"} {
		found := workloads(t, file)
		if len(found) != 1 {
			t.Fatalf("%s: %d workloads, want 1", file, len(found))
		}
		pod := found[0].Spec.Template.Spec
		if s := pod.SecurityContext; !s.RunAsNonRoot || s.RunAsUser == 0 || s.SeccompProfile.Type != "RuntimeDefault" {
			t.Errorf("%s: pod's security context is %+v", file, s)
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: the pod gets a token of the cluster", file)
		}
		for _, c := range pod.Containers {
			s := c.SecurityContext
			if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || s.Privileged {
				t.Errorf("%s: container's security context is %+v", file, s)
			}
			if len(s.Capabilities.Add) > 0 || strings.Join(s.Capabilities.Drop, "") != "ALL" {
				t.Errorf("%s: capabilities are %+v", file, s.Capabilities)
			}
			if p := c.ReadinessProbe.HTTPGet; p.Path != "/readyz" || p.Port != c.Ports[0].Name {
				t.Errorf("%s: readiness probe is %+v", file, p)
			}
			if p := c.LivenessProbe.HTTPGet; p.Path != "/healthz" || p.Port != c.Ports[0].Name {
				t.Errorf("%s: liveness probe is %+v", file, p)
			}
		}
	}
}

// TestImageUser: the images name a user other than root, as a number: Kubernetes
// cannot check runAsNonRoot by a name. The user of the registry's image is that of
// its manifest, since /data belongs to this user.
func TestImageUser(t *testing.T) {
	t.Parallel()
	registry := workloads(t, "registry.yaml")[0].Spec.Template.Spec.SecurityContext.RunAsUser
	for file, want := range map[string]int{"../Dockerfile": 0, "registry.Dockerfile": registry} { // 0: any
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stages := strings.Split(string(page), "\nFROM ")
		users := regexp.MustCompile(`(?m)^USER ([0-9]+):([0-9]+)$`).FindAllStringSubmatch(stages[len(stages)-1], -1)
		if len(users) != 1 {
			t.Errorf("%s: USER is set %d times, want once, by numbers", file, len(users))
			continue
		}
		uid, gid := users[0][1], users[0][2]
		if uid == "0" || gid == "0" || want != 0 && uid != strconv.Itoa(want) {
			t.Errorf("%s: USER %s:%s", file, uid, gid)
		}
	}
}

// TestSecrets: the programs get keys from secrets of Kubernetes. No key stands in
// the manifest, neither as the value of a variable nor in an argument.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for file, name := range map[string]string{"registry.yaml": "REGISTRY_NATS_URL", "worker.yaml": "CODEX_API_KEY"} {
		c := workloads(t, file)[0].Spec.Template.Spec.Containers[0]
		seen := false
		for _, e := range c.Env {
			if e.Name == name {
				seen = e.Value == "" && e.ValueFrom.SecretKeyRef.Name != ""
			}
		}
		if !seen {
			t.Errorf("%s: %s is not from a secret", file, name)
		}
		if strings.Contains(strings.Join(c.Args, " "), "xa_") {
			t.Errorf("%s: an argument holds a key", file)
		}
	}
}

// TestNames: the programs know the variables and flags that the manifests set.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		file     string
		help     []string // arguments of go that print the help of the program
		variable string   // prefix of the variables that the program reads
		least    int      // how many variables and flags the manifest sets at least
	}{
		{"registry.yaml", []string{"run", "../cmd/registry", "serve", "--help"}, "REGISTRY_", 8},
		{"worker.yaml", []string{"run", "../cmd/agent", "exec-server", "--help"}, "AGENT_", 3},
	} {
		help, err := exec.CommandContext(t.Context(), "go", test.help...).Output()
		if err != nil {
			t.Fatalf("%s: %v", test.help, err)
		}
		var names []string
		c := workloads(t, test.file)[0].Spec.Template.Spec.Containers[0]
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, test.variable) {
				names = append(names, "$"+e.Name)
			}
		}
		for _, argument := range c.Args {
			name, _, _ := strings.Cut(argument, "=")
			names = append(names, name)
		}
		if len(names) < test.least {
			t.Errorf("%s sets %q, want at least %d", test.file, names, test.least)
		}
		for _, name := range names {
			if !regexp.MustCompile(`(?m)(^|[ (])` + regexp.QuoteMeta(name) + `([ =,)]|$)`).Match(help) {
				t.Errorf("%s sets %s, which %s does not know", test.file, name, test.help[1])
			}
		}
	}
}

// TestDrain: between SIGTERM and SIGKILL Kubernetes waits at least 10 s longer than
// the registry drains.
func TestDrain(t *testing.T) {
	t.Parallel()
	pod := workloads(t, "registry.yaml")[0].Spec.Template.Spec
	for _, e := range pod.Containers[0].Env {
		if e.Name != "REGISTRY_DRAIN_TIMEOUT" {
			continue
		}
		drain, err := time.ParseDuration(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		if grace := time.Duration(pod.TerminationGracePeriodSeconds) * time.Second; grace < drain+10*time.Second {
			t.Errorf("pod ends %v after SIGTERM, the drain takes up to %v", grace, drain)
		}
		return
	}
	t.Error("REGISTRY_DRAIN_TIMEOUT is not set")
}
