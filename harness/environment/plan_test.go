package environment_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const noisePrefix = "CODEX_EXEC_SERVER_NOISE_"

// TestLoad has the rows of client.md 4.2.
func TestLoad(t *testing.T) {
	t.Parallel()
	local := environment.Plan{Default: "local", IncludeLocal: true}
	server := environment.Plan{
		Entries: []environment.Entry{{ID: "remote", Transport: environment.URL{URL: "ws://h:1"}}},
		Default: "remote",
	}
	noise := map[string]string{
		noisePrefix + "REGISTRY_URL": " https://r ", noisePrefix + "ENVIRONMENT_ID": " e ", noisePrefix + "AUTH_TOKEN": " t ",
	}
	with := func(changes map[string]string) map[string]string {
		all := map[string]string{}
		for _, m := range []map[string]string{noise, changes} {
			maps.Copy(all, m)
		}
		return all
	}
	byNoise := environment.Plan{
		Entries: []environment.Entry{{ID: "remote", Transport: environment.Noise{RegistryURL: "https://r", EnvironmentID: "e", AuthToken: "t"}}},
		Default: "remote",
	}
	withAccount := environment.Plan{
		Entries: []environment.Entry{{ID: "remote", Transport: environment.Noise{RegistryURL: "https://r", EnvironmentID: "e", AuthToken: "t", AccountID: "a"}}},
		Default: "remote",
	}
	const incomplete = "environment registry configuration error: Noise environment requires CODEX_EXEC_SERVER_NOISE_REGISTRY_URL, CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID, and CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN"
	for _, tt := range []struct {
		name      string
		variables map[string]string
		file      string // "": there is none
		want      environment.Plan
		wantErr   string
	}{
		{name: "nothing", want: local},
		{name: "blank URL", variables: map[string]string{"CODEX_EXEC_SERVER_URL": " \t"}, want: local},
		{name: "none", variables: map[string]string{"CODEX_EXEC_SERVER_URL": " NoNe "}},
		{name: "URL", variables: map[string]string{"CODEX_EXEC_SERVER_URL": " ws://h:1 "}, want: server},
		{
			name: "any URL", variables: map[string]string{"CODEX_EXEC_SERVER_URL": "no URL"},
			want: environment.Plan{Entries: []environment.Entry{{ID: "remote", Transport: environment.URL{URL: "no URL"}}}, Default: "remote"},
		},
		{name: "file before URL", variables: map[string]string{"CODEX_EXEC_SERVER_URL": "ws://h:1"}, file: "# nothing\n", want: local},
		{name: "noise before file", variables: noise, file: "nonsense", want: byNoise},
		{name: "account", variables: with(map[string]string{noisePrefix + "CHATGPT_ACCOUNT_ID": " a "}), want: withAccount},
		{name: "account alone", variables: map[string]string{noisePrefix + "CHATGPT_ACCOUNT_ID": "a"}, want: local},
		{name: "noise blank", variables: map[string]string{noisePrefix + "REGISTRY_URL": " ", noisePrefix + "AUTH_TOKEN": ""}, want: local},
		{name: "noise without URL", variables: with(map[string]string{noisePrefix + "REGISTRY_URL": " "}), wantErr: incomplete},
		{name: "noise without id", variables: with(map[string]string{noisePrefix + "ENVIRONMENT_ID": ""}), wantErr: incomplete},
		{name: "noise without token", variables: with(map[string]string{noisePrefix + "AUTH_TOKEN": ""}), wantErr: incomplete},
	} {
		home := t.TempDir()
		if tt.file != "" {
			write(t, filepath.Join(home, "environments.toml"), tt.file)
		}
		got, err := environment.Load(home, func(name string) string { return tt.variables[name] })
		rig.Is(t, text(err), tt.wantErr, "%s: the error of Load", tt.name)
		rig.Same(t, tt.name, tt.want, got)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

// text returns the text of an error, "" for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
