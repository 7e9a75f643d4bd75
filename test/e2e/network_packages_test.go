package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// dependencies are how many packages the one for npm needs.
const dependencies = 50

// TestNetworkPackages: what fetches packages works through the proxy of a confined command, with
// nothing but one place allowed, with namespaces and without. By https, but for npm, which takes
// an address behind a proxy for another name. go is not among them: for loopback addresses it never
// uses a proxy.
func TestNetworkPackages(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	server, plain := httptest.NewTLSServer(mux), httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(plain.Close)
	tools := t.TempDir()
	for dir := tools; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // TempDir makes some private
			t.Fatal(err)
		}
	}
	roots := filepath.Join(tools, "roots.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(roots, certificate, 0o644); err != nil {
		t.Fatal(err)
	}
	launcher := filepath.Join(tools, "nouserns")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", launcher, "../rig/nouserns")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	serveGit(t, mux, tools)
	serveNPM(t, mux, plain.URL)
	servePip(t, mux)
	for _, tt := range []struct {
		program, server, script, want string
	}{
		{"git", server.URL, `git clone -q $SERVER/git/repo.git clone && cat clone/file`, "from git\n"},
		{"npm", plain.URL, `npm install --silent --no-audit --no-fund --registry $SERVER/npm/ p0 >&2 && ls node_modules | wc -l`, fmt.Sprintln(dependencies + 1)},
		{"pip", server.URL, `pip download -q --disable-pip-version-check --no-deps --index-url $SERVER/pip/simple --dest out pkg >&2 && ls out`, "pkg-1.0-py3-none-any.whl\n"},
	} {
		if _, err := exec.LookPath(tt.program); err != nil {
			t.Log(err)
			continue
		}
		for name, launch := range map[string][]string{"namespaces": nil, "supervised": {launcher, "--"}} {
			t.Run(tt.program+"/"+name, func(t *testing.T) {
				t.Parallel()
				work := t.TempDir()
				_, place, _ := strings.Cut(tt.server, "://")
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
				defer stop()
				argv := append(launch, rig.Agent(t), "sandbox", "--workspace", work, "--network", "allow="+place, "--", "sh", "-c", tt.script)
				cmd := rig.Leash(exec.CommandContext(ctx, argv[0], argv[1:]...))
				cmd.Dir = work
				cmd.Env = []string{
					"PATH=" + os.Getenv("PATH"), "HOME=" + work, "SERVER=" + tt.server,
					"GIT_CONFIG_NOSYSTEM=1", "GIT_SSL_CAINFO=" + roots, "PIP_CERT=" + roots, "PYENV_ROOT=" + os.Getenv("PYENV_ROOT"),
				}
				cmd.SysProcAttr.Setsid = true // without a terminal
				var stdout, stderr strings.Builder
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				err := cmd.Run()
				if err != nil || stdout.String() != tt.want {
					t.Errorf("%v: printed %q, want %q\n%s", err, stdout.String(), tt.want, stderr.String())
				}
				if !strings.Contains(stderr.String(), "agent: network: reached "+place) {
					t.Errorf("it has reached nothing: %s", stderr.String())
				}
			})
		}
	}
}

// serveGit serves a repository as files.
func serveGit(t *testing.T, mux *http.ServeMux, dir string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		return
	}
	script := `git init -q src && cd src && echo from git >file && git add file &&
		git -c user.name=n -c user.email=e@example.test commit -qm m && git clone -q --bare . ../served/repo.git && cd ../served/repo.git && git update-server-info`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mux.Handle("/git/", http.StripPrefix("/git/", http.FileServer(http.Dir(filepath.Join(dir, "served")))))
}

// serveNPM serves packages p0 to p50, of which the first needs all others.
func serveNPM(t *testing.T, mux *http.ServeMux, url string) {
	t.Helper()
	for i := range dependencies + 1 {
		name := fmt.Sprint("p", i)
		about := map[string]any{"name": name, "version": "1.0.0"}
		if i == 0 {
			needs := map[string]string{}
			for j := range dependencies {
				needs[fmt.Sprint("p", j+1)] = "1.0.0"
			}
			about["dependencies"] = needs
		}
		manifest := mustJSON(t, about)
		var ball bytes.Buffer
		zipped := gzip.NewWriter(&ball)
		files := tar.NewWriter(zipped)
		err := files.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(manifest))})
		if err == nil {
			_, err = files.Write(manifest)
		}
		if err != nil || files.Close() != nil || zipped.Close() != nil {
			t.Fatal("making a package for npm")
		}
		sum := sha1.Sum(ball.Bytes())
		about["dist"] = map[string]string{"tarball": url + "/npm/" + name + ".tgz", "shasum": hex.EncodeToString(sum[:])}
		mux.Handle("/npm/"+name, content(mustJSON(t, map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": about}})))
		mux.Handle("/npm/"+name+".tgz", content(ball.Bytes()))
	}
}

func servePip(t *testing.T, mux *http.ServeMux) {
	t.Helper()
	wheel := archive(t, map[string]string{
		"pkg/__init__.py":            "",
		"pkg-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"pkg-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
		"pkg-1.0.dist-info/RECORD":   "",
	})
	mux.HandleFunc("/pip/simple/pkg/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<!DOCTYPE html><html><body><a href="/pip/pkg-1.0-py3-none-any.whl">pkg-1.0-py3-none-any.whl</a></body></html>`))
	})
	mux.Handle("/pip/pkg-1.0-py3-none-any.whl", content(wheel))
}

func content(data []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// archive returns a zip of files.
func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
