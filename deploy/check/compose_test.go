package check

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// composed loads compose.yaml as docker compose does, strictly.
func composed(t *testing.T) *types.Project {
	t.Helper()
	options := value(cli.NewProjectOptions([]string{"../compose.yaml"},
		cli.WithName("execagent"), cli.WithInterpolation(true), cli.WithResolvedPaths(true)))
	return value(options.LoadProject(t.Context()))
}

// TestCompose: the services are hardened, get keys as secrets, and are given flags and variables
// that the programs know.
func TestCompose(t *testing.T) {
	t.Parallel()
	project := composed(t)
	for name, s := range project.Services {
		if !s.ReadOnly || len(s.CapDrop) != 1 || s.CapDrop[0] != "ALL" || len(s.CapAdd) > 0 || s.Privileged || len(s.SecurityOpt) != 1 || s.SecurityOpt[0] != "no-new-privileges:true" {
			t.Errorf("%s is not hardened: %+v", name, s)
		}
		for variable, value := range s.Environment {
			if strings.HasPrefix(variable, "REGISTRY_") || strings.HasPrefix(variable, "AGENT_") {
				known(t, "compose.yaml", name, "$"+variable)
			}
			if file, ok := strings.CutPrefix(*value, "/run/secrets/"); ok {
				found := slices.ContainsFunc(s.Secrets, func(secret types.ServiceSecretConfig) bool {
					return secret.Source == file && secret.Target == "/run/secrets/"+file
				})
				not(t, !found, "%s has no secret %s: %v", name, file, s.Secrets)
			}
		}
		for _, argument := range s.Command {
			if flag, _, _ := strings.Cut(argument, "="); strings.HasPrefix(flag, "-") {
				known(t, "compose.yaml", name, flag)
			}
		}
		for _, p := range s.Ports {
			not(t, p.HostIP != "127.0.0.1", "%s publishes %s on %q", name, p.Published, p.HostIP)
		}
	}
	not(t, len(project.Services) != 2, "compose.yaml has %d services, want 2", len(project.Services))
}

// TestComposeCommands makes the secrets with the commands that compose.yaml names, and runs both
// programs with its flags and variables, on loopback addresses: the worker comes online.
func TestComposeCommands(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip(err)
	}
	text := read("../compose.yaml")
	dir := t.TempDir()
	registry, metrics, health := free(t), free(t), free(t)
	here := strings.NewReplacer("/run/secrets/", filepath.Join(dir, "secrets")+"/", "0.0.0.0:7300", registry, "127.0.0.1:7302", metrics, "127.0.0.1:7301", health,
		"https://registry:7300", "https://localhost:"+registry[strings.LastIndex(registry, ":")+1:], "/home/agent", dir)
	project := composed(t)
	environment := func(service string) []string {
		variables := []string{"PATH=" + os.Getenv("PATH"), "REGISTRY_DATA=" + filepath.Join(dir, "data")}
		for name, value := range project.Services[service].Environment {
			variables = append(variables, name+"="+here.Replace(*value))
		}
		return variables
	}
	run := func(name string, service string, args []string) {
		t.Helper()
		for i := range args {
			args[i] = here.Replace(args[i])
		}
		launch(t, dir, environment(service), name, args...)
	}

	commands := regexp.MustCompile(`(?m)^#   (.*)$`).FindAllStringSubmatch(string(text), -1)
	script := "set -eu\n"
	for _, c := range commands {
		if line := c[1]; !strings.HasPrefix(line, "docker") {
			script += line + "\n"
		}
	}
	make := exec.CommandContext(t.Context(), "sh", "-c", script)
	make.Dir = dir
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	if len(commands) < 6 {
		t.Fatalf("compose.yaml names %d commands", len(commands))
	}
	key := regexp.MustCompile(`run --rm registry (keys create .*) >secrets/api-key`).FindStringSubmatch(string(text))
	if key == nil {
		t.Fatal("compose.yaml does not say how to make the key")
	}
	create := exec.CommandContext(t.Context(), "sh", "-c", program("registry")+" "+key[1]+` >"$0"`, filepath.Join(dir, "secrets/api-key"))
	create.Env = environment("registry")
	if out, err := create.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", key[1], err, out)
	}
	run("registry", "registry", project.Services["registry"].Command)
	answers(t, "http://"+metrics+"/readyz")
	run("agent", "worker", project.Services["worker"].Command)
	answers(t, "http://"+health+"/readyz")
}

// launch starts a program of ours, which is interrupted when the test ends.
func launch(t *testing.T, dir string, environ []string, name string, args ...string) (ended <-chan error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), value(filepath.Abs(program(name))), args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, environ, t.Output()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	must(t, cmd.Start())
	end := make(chan error, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() { end <- cmd.Wait() })
	t.Cleanup(waiting.Wait)
	return end
}

// free returns an address that nobody listens at.
func free(t *testing.T) string {
	t.Helper()
	l := value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}

// answers waits until a URL answers 200.
func answers(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		request := value(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
			err = fmt.Errorf("%s %s", response.Status, body)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", url, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
