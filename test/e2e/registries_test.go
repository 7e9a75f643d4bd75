package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// registryClients returns the programs of testdata/programs/registries that fetch from registries.
func registryClients(t *testing.T) map[string]registryClient {
	t.Helper()
	all := map[string]registryClient{}
	for _, s := range rig.Sections(t, "testdata/programs/registries") {
		parts := strings.SplitN(s.Text, "\n", 4)
		script, prints, _ := strings.Cut(parts[3], "\n\n")
		all[s.Name] = registryClient{parts[0], parts[1], script, prints}
	}
	return all
}

// A registryClient needs what succeeds where it is installed.
type registryClient struct{ needs, allow, script, prints string }

// TestRegistries: what package managers fetch over TLS from servers like those that they
// usually ask comes through the proxy of a command, with only the names of these allowed, with
// namespaces and without. A name that is not allowed leads nowhere, although its server is there.
func TestRegistries(t *testing.T) {
	t.Parallel()
	if place := os.Getenv("E2E_REGISTRIES"); place != "" {
		client, enforcement, _ := strings.Cut(place, "/")
		fetchFromRegistries(t, registryClients(t)[client], enforcement)
		return
	}
	rig.Tier(t, rig.Nightly)
	need(t, missing, "unshare", "mount", "ip")
	tools := t.TempDir()
	hosts := rig.PublicAddress + " npm.example.com pypi.example.com files.example.com goproxy.example.com other.example.com\n"
	rig.Must(t, os.WriteFile(filepath.Join(tools, "hosts"), []byte(hosts), 0o644))
	launcher := rig.Launcher(t, tools)
	for name, client := range registryClients(t) {
		for enforcement, launch := range map[string]string{"namespaces": "", "supervised": launcher} {
			t.Run(name+"/"+enforcement, func(t *testing.T) {
				t.Parallel()
				if out, err := rig.Command(t, "sh", "-c", client.needs).CombinedOutput(); err != nil && name == "npm" {
					t.Skipf("%s: %v: %s", client.needs, err, out) // CI does not install it
				} else if err != nil {
					missing(t, fmt.Errorf("%s: %w: %s", client.needs, err, out))
				}
				rig.InNetwork(t, "TestRegistries", "E2E_REGISTRIES="+name+"/"+launch, filepath.Join(tools, "hosts"), "/etc/hosts")
			})
		}
	}
}

// times is what a line says of a place that was reached or refused more than once.
var times = regexp.MustCompile(` \([0-9]+ times\)`)

// fetchFromRegistries runs one client in a namespace that has the servers; launcher is what it is
// launched by, if anything.
func fetchFromRegistries(t *testing.T, client registryClient, launcher string) {
	const other = "other.example.com"
	base := t.TempDir()
	work, tmp := filepath.Join(base, "work"), filepath.Join(base, "tmp") // go takes no module in TMPDIR itself
	var strays atomic.Int64
	served := registries(t)
	listener, err := net.Listen("tcp", rig.PublicAddress+":443")
	rig.Must(t, err)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host == other {
			strays.Add(1)
		}
		served.ServeHTTP(w, r)
	})}}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	rig.Must(t, errors.Join(os.Mkdir(work, 0o755), os.Mkdir(tmp, 0o755), os.WriteFile(filepath.Join(work, "ca.pem"), ca, 0o644)))
	argv := []string{rig.Agent(t), "sandbox", "--workspace", work, "--network", "allow=" + client.allow, "--",
		"sh", "-ec", strings.ReplaceAll(client.script, "OTHER", "https://"+other)}
	if launcher != "" {
		argv = append([]string{launcher, "--"}, argv...)
	}
	cmd := rig.Leash(rig.Command(t, argv[0], argv[1:]...))
	cmd.Dir, cmd.Env = work, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + work, "TMPDIR=" + tmp}
	cmd.SysProcAttr.Setsid = true // without a terminal
	var want strings.Builder
	for place := range strings.SplitSeq(client.allow, ",") {
		want.WriteString("agent: network: reached " + place + "\n")
	}
	want.WriteString("agent: network: refused " + other + ":443: not allowed; add --network allow=" + other + ":443\n")
	r := finish(t, cmd)
	r.stderr = times.ReplaceAllString(r.stderr, "")
	rig.Is(t, r, result{client.prints, want.String(), 0}, "the client")
	rig.Is(t, strays.Load(), 0, "how often %s was reached", other)
}

// registries serves what the clients fetch. The host that nobody may reach has it all.
func registries(t *testing.T) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	for host, handler := range map[string]http.Handler{
		"npm": npmRegistry(t), "pypi": pypiIndex(), "files": pypiFiles(t), "goproxy": goProxy(t),
	} {
		mux.Handle(host+".example.com/", handler)
	}
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	return mux
}

// npmRegistry has a package and its 50 dependencies.
func npmRegistry(t *testing.T) http.Handler {
	t.Helper()
	documents, tarballs := map[string][]byte{}, map[string][]byte{}
	publish := func(name string, dependencies map[string]string) {
		about := map[string]any{"name": name, "version": "1.0.0", "main": "index.js", "dependencies": dependencies}
		file := rig.Value(json.Marshal(about))
		tarball := tarballOf(t, map[string][]byte{"package/package.json": file, "package/index.js": []byte(`module.exports = "here"`)})
		sum := sha512.Sum512(tarball)
		about["dist"] = map[string]string{
			"tarball":   "https://npm.example.com/" + name + "/-/" + name + "-1.0.0.tgz",
			"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
		}
		document, err := json.Marshal(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": about}})
		rig.Must(t, err)
		documents["/"+name], tarballs["/"+name+"/-/"+name+"-1.0.0.tgz"] = document, tarball
	}
	parts := map[string]string{}
	for i := range 50 {
		name := fmt.Sprintf("part%02d", i+1)
		parts[name] = "^1.0.0"
		publish(name, nil)
	}
	publish("package", parts)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := documents[r.URL.Path]
		if ok {
			w.Header().Set("Content-Type", "application/json")
		} else if content, ok = tarballs[r.URL.Path]; !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content)
	})
}

// pypiIndex has a package and a dependency of it, whose files are at another host.
func pypiIndex() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<a href="https://files.example.com/%[1]s-1.0-py3-none-any.whl">%[1]s</a>`, name)
	})
}

// pypiFiles has the files of pypiIndex.
func pypiFiles(t *testing.T) http.Handler {
	t.Helper()
	wheel := func(name, needs string) []byte {
		info := name + "-1.0.dist-info/"
		return zipOf(t, map[string]string{
			name + ".py":       "",
			info + "METADATA":  "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n" + needs,
			info + "WHEEL":     "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
			info + "RECORD":    "",
			info + "top_level": name,
		})
	}
	return filesHandler(map[string][]byte{
		"/package-1.0-py3-none-any.whl": wheel("package", "Requires-Dist: part\n"),
		"/part-1.0-py3-none-any.whl":    wheel("part", ""),
	})
}

// goProxy has a module.
func goProxy(t *testing.T) http.Handler {
	t.Helper()
	const module = "module example.org/library\n"
	return filesHandler(map[string][]byte{
		"/example.org/library/@v/v1.0.0.info": []byte(`{"Version": "v1.0.0"}`),
		"/example.org/library/@v/v1.0.0.mod":  []byte(module),
		"/example.org/library/@v/v1.0.0.zip": zipOf(t, map[string]string{
			"example.org/library@v1.0.0/go.mod":     module,
			"example.org/library@v1.0.0/library.go": "package library\n",
		}),
	})
}

func filesHandler(files map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content)
	})
}

func tarballOf(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	w := tar.NewWriter(zipped)
	for name, content := range files {
		rig.Must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}), rig.Err(w.Write(content)))
	}
	rig.Must(t, w.Close(), zipped.Close())
	return packed.Bytes()
}

func zipOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for name, content := range files {
		f, err := w.Create(name)
		rig.Must(t, err)
		rig.Must(t, rig.Err(io.WriteString(f, content)))
	}
	rig.Must(t, w.Close())
	return packed.Bytes()
}
