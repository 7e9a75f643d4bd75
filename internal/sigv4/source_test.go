package sigv4

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/test/rig"
)

var _ auth.RequestSigner = (*Source)(nil)

// environment is that of a Config.
type environment map[string]string

func (e environment) lookup(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

// host returns the variables of a host without endpoints, with these shared files.
func host(t *testing.T, credentials, settings string) environment {
	t.Helper()
	home := t.TempDir()
	rig.Must(t, os.Mkdir(filepath.Join(home, ".aws"), 0o700))
	for name, text := range map[string]string{"credentials": credentials, "config": settings} {
		if text != "" {
			rig.Must(t, os.WriteFile(filepath.Join(home, ".aws", name), []byte(text), 0o600))
		}
	}
	return environment{"HOME": home, "AWS_REGION": "eu-west-1", "AWS_EC2_METADATA_DISABLED": "true"}
}

func (e environment) with(more environment) environment {
	both := maps.Clone(e)
	maps.Copy(both, more)
	return both
}

func TestWhichKeys(t *testing.T) {
	t.Parallel()
	const credentials = `
# comment
[default]
aws_access_key_id = FILE
aws_secret_access_key = secret/of=file ; comment
[dev]
aws_access_key_id=DEV
aws_secret_access_key=secret
aws_session_token=token
`
	const settings = `
[default]
region = us-east-1
s3 =
  addressing_style = path
[profile dev]
region = eu-north-1
aws_access_key_id = SETTINGS
aws_secret_access_key = other
[profile settings]
aws_access_key_id = SETTINGS
aws_secret_access_key = other
[profile role]
role_arn = arn:aws:iam::1:role/x
[dev2]
aws_access_key_id = NOPROFILE
aws_secret_access_key = x
`
	variables := environment{"AWS_ACCESS_KEY_ID": "VAR", "AWS_SECRET_ACCESS_KEY": "secret"}
	for name, tt := range map[string]struct {
		profile string
		more    environment
		id      string // "": no keys
		file    string
		says    string
	}{
		"variables first":           {"", variables, "VAR", "", ""},
		"the default profile":       {"", nil, "FILE", "credentials", ""},
		"a profile named":           {"dev", nil, "DEV", "credentials", ""},
		"a profile over variables":  {"dev", variables, "DEV", "credentials", ""},
		"the variable of a profile": {"", environment{"AWS_PROFILE": "settings"}, "SETTINGS", "config", ""},
		"the flag over it":          {"dev", environment{"AWS_PROFILE": "settings"}, "DEV", "credentials", ""},
		"variables over it":         {"", variables.with(environment{"AWS_PROFILE": "dev"}), "VAR", "", ""},
		"no such profile":           {"none", nil, "", "", "no AWS credentials"},
		"no prefix in settings":     {"dev2", nil, "", "", "no AWS credentials"},
		"keys elsewhere":            {"role", nil, "", "", "role_arn"},
		"half of the variables":     {"", environment{"AWS_ACCESS_KEY_ID": "VAR", "AWS_SECRET_ACCESS_KEY": ""}, "", "", "need each other"},
		"a key that is no word":     {"", environment{"AWS_ACCESS_KEY_ID": "V R", "AWS_SECRET_ACCESS_KEY": "x"}, "", "", "access key id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := host(t, credentials, settings).with(tt.more)
			s, err := Open(t.Context(), Config{Profile: tt.profile, Lookup: e.lookup})
			var k Keys
			file := ""
			if err == nil {
				file = File(Config{Profile: tt.profile, Lookup: e.lookup})
				k, err = s.keys(t.Context())
			}
			if tt.says != "" {
				rig.Says(t, err, tt.says, "the credentials")
				if strings.Contains(err.Error(), "secret") && !strings.Contains(err.Error(), "SECRET") {
					t.Errorf("%v tells a secret", err)
				}
				return
			}
			rig.Must(t, err)
			rig.Is(t, k.AccessKeyID, tt.id, "the keys")
			rig.Is(t, strings.TrimPrefix(file, filepath.Join(e["HOME"], ".aws")+"/"), tt.file, "the file of the keys")
			if tt.id == "FILE" && k.SecretAccessKey != "secret/of=file" {
				t.Error("the comment is part of the secret, or more is missing")
			}
		})
	}
}

func TestWhichRegion(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		region, profile string
		more            environment
		want            string
	}{
		"the flag":             {" eu-south-1 ", "", nil, "eu-south-1"},
		"the variable":         {"", "", nil, "eu-west-1"},
		"the default variable": {"", "", environment{"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"},
		"the default profile":  {"", "", environment{"AWS_REGION": ""}, "us-east-1"},
		"the profile":          {"", "dev", environment{"AWS_REGION": ""}, "eu-north-1"},
		"another profile":      {"", "none", environment{"AWS_REGION": ""}, ""},
		"no region":            {"", "", environment{"AWS_REGION": "", "HOME": ""}, ""},
	} {
		e := host(t, "", "[default]\nregion = us-east-1\n[profile dev]\nregion=eu-north-1\n").with(tt.more)
		s, err := Open(t.Context(), Config{Region: tt.region, Profile: tt.profile, Lookup: e.lookup})
		if tt.want == "" {
			rig.Is(t, err, ErrNoRegion, "%s", name)
			continue
		}
		rig.Must(t, err)
		rig.Is(t, s.scope, Scope{tt.want, defaultService}, "%s", name)
	}
}

// imitation answers as the endpoints of containers and instances do, at a real socket. Whatever
// host is asked for, it is this one.
type imitation struct {
	*httptest.Server

	mu       sync.Mutex // protects the fields below
	requests []string   // method, host, path
	serial   int        // of the keys that were given out
	life     time.Duration
	down     bool
}

func newImitation(t *testing.T) *imitation {
	t.Helper()
	i := &imitation{life: time.Hour}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *imitation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.requests = append(i.requests, r.Method+" "+r.Host+r.URL.Path)
	keys := func(code string) string {
		i.serial++
		return fmt.Sprintf(`{%s"AccessKeyId":"ASIA%d","SecretAccessKey":"hidden","Token":"session","Expiration":%q,"LastUpdated":"x"}`,
			code, i.serial, time.Now().Add(i.life).UTC().Format(time.RFC3339))
	}
	switch {
	case i.down:
		w.WriteHeader(http.StatusInternalServerError)
	case r.Method == http.MethodPut && r.URL.Path == instanceToken && r.Header.Get(headerInstanceTokenTTL) == "21600":
		fmt.Fprint(w, "IMDS==")
	case strings.HasPrefix(r.URL.Path, "/latest/") && r.Header.Get(headerInstanceToken) != "IMDS==":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Method == http.MethodGet && r.URL.Path == instanceRoles:
		fmt.Fprint(w, "role-1\nrole-2\n")
	case r.Method == http.MethodGet && r.URL.Path == instanceRoles+"role-1":
		fmt.Fprint(w, keys(`"Code":"Success",`))
	case r.Method == http.MethodGet && r.URL.Path == instanceRegion:
		fmt.Fprint(w, "ap-south-1")
	case r.URL.Path == "/v2/credentials/uuid":
		fmt.Fprint(w, keys(""))
	case r.URL.Path == "/v1/credentials" && r.Header.Get("Authorization") == "pod token":
		fmt.Fprint(w, keys(""))
	case r.URL.Path == "/moved":
		http.Redirect(w, r, "/v2/credentials/uuid", http.StatusFound)
	case r.URL.Path == "/large":
		fmt.Fprint(w, strings.Repeat(" ", maxEndpoint), keys(""))
	case r.URL.Path == "/odd":
		fmt.Fprint(w, `{"AccessKeyId":"hidden value"`)
	case r.URL.Path == "/none":
		fmt.Fprint(w, `{"Code":"AssumeRoleUnauthorizedAccess"}`)
	default:
		w.WriteHeader(http.StatusForbidden)
	}
}

func (i *imitation) do(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

func (i *imitation) transport() http.RoundTripper {
	t := auth.NewTransport(nil, nil)
	t.DisableKeepAlives = true
	t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, i.Listener.Addr().String())
	}
	return t
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	rig.Must(t, os.WriteFile(token, []byte("pod token\n"), 0o600))
	for name, tt := range map[string]struct {
		variables environment
		asked     string // the last request; "": no keys
		says      string
	}{
		"instance":             {nil, "GET 169.254.169.254" + instanceRoles + "role-1", ""},
		"instance by IPv6":     {environment{"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}, "GET [fd00:ec2::254]" + instanceRoles + "role-1", ""},
		"instance elsewhere":   {environment{"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://localhost:1/"}, "GET localhost:1" + instanceRoles + "role-1", ""},
		"instance disabled":    {environment{"AWS_EC2_METADATA_DISABLED": "TRUE"}, "", "no AWS credentials"},
		"ECS":                  {environment{varRelativeURI: "/v2/credentials/uuid"}, "GET 169.254.170.2/v2/credentials/uuid", ""},
		"ECS, not a path":      {environment{varRelativeURI: "@evil/"}, "", "does not begin with /"},
		"EKS":                  {environment{varFullURI: "http://169.254.170.23/v1/credentials", varTokenFile: token, varToken: "older"}, "GET 169.254.170.23/v1/credentials", ""},
		"EKS by IPv6":          {environment{varFullURI: "http://[fd00:ec2::23]/v1/credentials", varToken: "pod token"}, "GET [fd00:ec2::23]/v1/credentials", ""},
		"this machine":         {environment{varFullURI: "http://localhost:9/v1/credentials", varToken: "pod token"}, "GET localhost:9/v1/credentials", ""},
		"the wrong token":      {environment{varFullURI: "http://localhost:9/v1/credentials", varToken: "other"}, "", "status 403"},
		"two lines of a token": {environment{varFullURI: "http://localhost:9/v1/credentials", varToken: "a\nb"}, "", "one line"},
		"no file of a token":   {environment{varFullURI: "http://localhost:9/v1/credentials", varTokenFile: token + "x"}, "", "no such file"},
		"plain http elsewhere": {environment{varFullURI: "http://example.com/v1/credentials"}, "", "plain http"},
		"another address":      {environment{varFullURI: "http://169.254.170.3/v1/credentials"}, "", "plain http"},
		"another scheme":       {environment{varFullURI: "file:///etc/passwd"}, "", "no http or https URL"},
		"a user in it":         {environment{varFullURI: "http://a:b@localhost/"}, "", "no http or https URL"},
		"a redirect":           {environment{varFullURI: "http://localhost:9/moved"}, "", "status 302"},
		"a large answer":       {environment{varFullURI: "http://localhost:9/large"}, "", "longer than"},
		"no JSON":              {environment{varFullURI: "http://localhost:9/odd"}, "", "not the JSON object"},
		"no success":           {environment{varFullURI: "http://localhost:9/none"}, "", "says that there are no credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newImitation(t)
			e := host(t, "", "").with(environment{"AWS_EC2_METADATA_DISABLED": ""}).with(tt.variables)
			s := rig.Value(Open(t.Context(), Config{Lookup: e.lookup, Transport: i.transport()}))
			k, err := s.keys(t.Context())
			if tt.says != "" {
				rig.Says(t, err, tt.says, "the credentials")
				rig.Is(t, strings.Contains(fmt.Sprint(err), "hidden"), false, "%v tells a secret", err)
				return
			}
			rig.Must(t, err)
			i.do(func() {
				rig.Is(t, i.requests[len(i.requests)-1], tt.asked, "asked")
			})
			rig.Is(t, k.AccessKeyID+k.SecretAccessKey+k.SessionToken, "ASIA1hiddensession", "the keys")
			rig.Is(t, k.Expires.IsZero(), false, "the keys never end")
		})
	}
}

// TestRenewal: what an endpoint has said is used until shortly before its end, and a little
// longer if the endpoint fails.
func TestRenewal(t *testing.T) {
	t.Parallel()
	i := newImitation(t)
	e := host(t, "", "").with(environment{varRelativeURI: "/v2/credentials/uuid"})
	s, err := Open(t.Context(), Config{Lookup: e.lookup, Transport: i.transport()})
	rig.Must(t, err)
	want := func(id string) {
		t.Helper()
		rig.Is(t, rig.Value(s.keys(t.Context())).AccessKeyID, id, "the keys")
	}
	want("ASIA1")
	want("ASIA1")
	s.fetched.Expires = time.Now().Add(early / 2)
	want("ASIA2")
	want("ASIA2")
	i.do(func() { i.down = true })
	s.fetched.Expires = time.Now().Add(early / 2)
	want("ASIA2")
	s.fetched.Expires = time.Now().Add(-time.Second)
	rig.Is(t, rig.Err(s.keys(t.Context())), auth.ErrTemporary, "")
	i.do(func() { i.down = false })
	want("ASIA3")
}

func TestInstanceRegion(t *testing.T) {
	t.Parallel()
	i := newImitation(t)
	e := host(t, "", "").with(environment{"AWS_REGION": "", "AWS_EC2_METADATA_DISABLED": "false"})
	rig.Is(t, rig.Value(Open(t.Context(), Config{Lookup: e.lookup, Transport: i.transport()})).scope.Region, "ap-south-1", "region")
}

// TestFileIsReadAgain: keys that are renewed in a shared file count for the next request.
func TestFileIsReadAgain(t *testing.T) {
	t.Parallel()
	e := host(t, "[default]\naws_access_key_id=ONE\naws_secret_access_key=x\n", "")
	s := rig.Value(Open(t.Context(), Config{Lookup: e.lookup}))
	for _, id := range []string{"ONE", "TWO"} {
		r := newRequest(t, http.MethodGet, vectorGet)
		rig.Must(t, s.SignRequest(t.Context(), r, nil))
		rig.Is(t, strings.Contains(r.Header.Get("Authorization"), "Credential="+id+"/"), true, "signed by %s", id)
		text := "[default]\naws_access_key_id=TWO\naws_secret_access_key=x\n"
		rig.Must(t, os.WriteFile(filepath.Join(e["HOME"], ".aws", "credentials"), []byte(text), 0o600))
	}
}

// TestPipes: pipes in the place of files are errors, and nobody waits for what would be written
// to them.
func TestPipes(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	rig.Must(t, syscall.Mkfifo(pipe, 0o600))
	for _, variables := range map[string]environment{
		"file of credentials": {"AWS_SHARED_CREDENTIALS_FILE": pipe},
		"file of a token":     {varFullURI: "http://localhost:9/v1/credentials", varTokenFile: pipe},
	} {
		s, err := Open(t.Context(), Config{Lookup: host(t, "", "").with(variables).lookup})
		if err == nil {
			_, err = s.keys(t.Context())
		}
		rig.Says(t, err, "is not a regular file", "the credentials")
	}
}

func TestSections(t *testing.T) {
	t.Parallel()
	for text, wrong := range map[string]string{
		"a=b":                          "line 1",
		"[x]\nnothing":                 "line 2",
		"[x\na=b":                      "line 1",
		"[]":                           "line 1",
		"[x]\n=b":                      "line 2",
		"":                             "",
		"\ufeff[x]\r\nA = b\r\n":       "",
		"[x]\na=\n nested = y\n[x]\n":  "",
		"; c\n# d\n[ x ]\na = b #c\n":  "",
		"[x]\na=1\n[x]\nb=2\n[x]\na=3": "",
	} {
		s, err := parseSections(text)
		if wrong != "" {
			rig.Says(t, err, wrong, "the credentials")
			continue
		}
		rig.Check(t, err)
		rig.Is(t, len(s["x"]) > 0, text != "", "%q: there are settings", text)
	}
	rig.Is(t, fmt.Sprint(rig.Value(parseSections("[x]\na=1\n[x]\nb=2#3\n[x]\na=3"))["x"]), "map[a:3 b:2#3]", "a section in three parts")
}

func FuzzSections(f *testing.F) {
	f.Add("[default]\naws_access_key_id = A\naws_secret_access_key = b ; c\n[profile x]\nregion=y\n  sub = z\n")
	f.Add("[\n]=\n\ufeff[x]\n=")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseSections(text)
		if err != nil {
			rig.Is(t, len(err.Error()) <= 100, true, "%v is short", err)
			return
		}
		size := 0
		for section, settings := range all {
			size += len(section)
			for name, value := range settings {
				size += len(name) + len(value)
				rig.Is(t, strings.TrimSpace(name)+"="+strings.TrimSpace(value), name+"="+value, "without blanks")
				rig.Is(t, strings.Contains(value, "\n"), false, "%q = %q", name, value)
			}
		}
		if size > 3*len(text) { // lower case may be longer
			t.Errorf("%d bytes became %d", len(text), size)
		}
	})
}
