package sigv4

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// Those of the vectors of capabilities.md 7, which the reference has signed.
var (
	vectorKeys  = Keys{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
	vectorScope = Scope{Region: "eu-west-1", Service: "svc"}
	vectorTime  = time.Date(2026, 11, 22, 17, 4, 44, 0, time.UTC)
)

const (
	vectorPost = "http://127.0.0.1:7370/base/cloud/environment/env-1/direct/register"
	vectorBody = `{"transport":"direct_jsonrpc_v1"}`
	vectorGet  = "ws://127.0.0.1:7370/connect?token=a%20b&z=1&a=2"
)

func newRequest(t *testing.T, method, target string) *http.Request {
	t.Helper()
	r := rig.Value(http.NewRequestWithContext(t.Context(), method, target, nil))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "*/*")
	}
	return r
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ method, target, body, signed, signature string }{
		{http.MethodPost, vectorPost, vectorBody, "content-type;host;x-amz-date", "3d56ad12089d600453b3f305741659c238606bdfb6e691bc011a2f151b1dab34"},
		{http.MethodGet, vectorGet, "", "host;x-amz-date", "bce9c3ea36dc185bf4889fb737c1ae6b9b1cc4e4fbfe36fbb6441fd928932b62"},
	} {
		r := newRequest(t, tt.method, tt.target)
		rig.Must(t, vectorKeys.Sign(t.Context(), r, []byte(tt.body), vectorScope, vectorTime))
		want := "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261122/eu-west-1/svc/aws4_request, SignedHeaders=" + tt.signed + ", Signature=" + tt.signature
		rig.Is(t, r.Header.Get("Authorization"), want, "%s", tt.method)
		rig.Is(t, r.Header.Get("X-Amz-Date"), "20261122T170444Z", "%s: date", tt.method)
	}
}

// arrived is r as a server sees it.
func arrived(t *testing.T, r *http.Request) *http.Request {
	t.Helper()
	u := rig.Value(url.ParseRequestURI(r.URL.RequestURI()))
	return &http.Request{Method: r.Method, URL: u, Host: r.URL.Host, Header: r.Header.Clone()}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	type request struct {
		r      *http.Request
		body   string
		secret string
		now    time.Time
		at     []*url.URL
	}
	tests := map[string]struct {
		change func(*request)
		ok     bool
	}{
		"as it was signed":     {func(*request) {}, true},
		"15 minutes later":     {func(q *request) { q.now = q.now.Add(Window) }, true},
		"15 minutes before":    {func(q *request) { q.now = q.now.Add(-Window) }, true},
		"later than that":      {func(q *request) { q.now = q.now.Add(Window + time.Second) }, false},
		"before that":          {func(q *request) { q.now = q.now.Add(-Window - time.Second) }, false},
		"another secret":       {func(q *request) { q.secret += "x" }, false},
		"another method":       {func(q *request) { q.r.Method = http.MethodPut }, false},
		"another path":         {func(q *request) { q.r.URL.Path += "x" }, false},
		"another query":        {func(q *request) { q.r.URL.RawQuery += "&x=1" }, false},
		"another host":         {func(q *request) { q.r.Host = "example.com" }, false},
		"another body":         {func(q *request) { q.body += " " }, false},
		"another date":         {func(q *request) { q.r.Header.Set("X-Amz-Date", "20261122T170445Z") }, false},
		"another day":          {func(q *request) { q.r.Header.Set("X-Amz-Date", "20261123T000000Z") }, false},
		"two dates":            {func(q *request) { q.r.Header.Add("X-Amz-Date", "20261122T170444Z") }, false},
		"no date":              {func(q *request) { q.r.Header.Del("X-Amz-Date") }, false},
		"another content type": {func(q *request) { q.r.Header.Set("Content-Type", "text/plain") }, false},
		"two content types":    {func(q *request) { q.r.Header.Add("Content-Type", "application/json") }, false},
		"another token":        {func(q *request) { q.r.Header.Set("X-Amz-Security-Token", "other") }, false},
		"no token":             {func(q *request) { q.r.Header.Del("X-Amz-Security-Token") }, false},
		"two tokens":           {func(q *request) { q.r.Header.Add("X-Amz-Security-Token", "token") }, false},
		"an unsigned header":   {func(q *request) { q.r.Header.Set("User-Agent", "other") }, true},
		"behind a proxy": {func(q *request) {
			q.r.Host, q.at = "inside", []*url.URL{{Host: "inside"}, {Host: "127.0.0.1:7370", Path: q.r.URL.Path}}
		}, true},
		"known by another path": {func(q *request) { q.at = []*url.URL{{Host: "127.0.0.1:7370", Path: "/other"}} }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys := vectorKeys
			keys.SessionToken = "token"
			sent := newRequest(t, http.MethodPost, vectorPost)
			rig.Must(t, keys.Sign(t.Context(), sent, []byte(vectorBody), vectorScope, vectorTime))
			q := &request{r: arrived(t, sent), body: vectorBody, secret: keys.SecretAccessKey, now: vectorTime}
			claim, err := ParseClaim(q.r.Header.Get("Authorization"))
			rig.Must(t, err)
			tt.change(q)
			err = claim.Verify(t.Context(), q.r, []byte(q.body), q.secret, q.now, q.at...)
			rig.Is(t, err, map[bool]error{false: ErrNotSigned}[tt.ok], "")
		})
	}
}

// TestVerifyGet: a request for a websocket, with a query whose order is not the one that is
// signed, and a path that needs escapes.
func TestVerifyGet(t *testing.T) {
	t.Parallel()
	for _, target := range []string{vectorGet, "ws://127.0.0.1:7370/a%20b/%C3%A4?x=%2F&y=+", "wss://example.com/", "wss://example.com"} {
		sent := newRequest(t, http.MethodGet, target)
		rig.Must(t, vectorKeys.Sign(t.Context(), sent, nil, vectorScope, vectorTime))
		r := arrived(t, sent)
		claim := rig.Value(ParseClaim(r.Header.Get("Authorization")))
		rig.Check(t, claim.Verify(t.Context(), r, nil, vectorKeys.SecretAccessKey, vectorTime))
	}
}

func TestParseClaim(t *testing.T) {
	t.Parallel()
	good := "AWS4-HMAC-SHA256 Credential=AK/20261122/eu-west-1/svc/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + strings.Repeat("0a", 32)
	rig.Value(ParseClaim(good))
	for name, header := range map[string]string{
		"empty":             "",
		"bearer":            "Bearer x",
		"scheme alone":      "AWS4-HMAC-SHA256 ",
		"another algorithm": strings.Replace(good, "SHA256", "SHA512", 1),
		"no blank":          strings.ReplaceAll(good, ", ", ","),
		"parts missing":     strings.Replace(good, "/svc", "", 1),
		"part too many":     strings.Replace(good, "/svc", "/svc/x", 1),
		"terminator":        strings.Replace(good, "aws4_request", "aws4", 1),
		"no day":            strings.Replace(good, "20261122", "20261399", 1),
		"empty id":          strings.Replace(good, "AK/", "/", 1),
		"odd id":            strings.Replace(good, "AK/", "A.K/", 1),
		"long id":           strings.Replace(good, "AK/", strings.Repeat("A", 200)+"/", 1),
		"short signature":   good[:len(good)-1],
		"capital signature": strings.Replace(good, "0a0a", "0A0A", 1),
		"no host":           strings.Replace(good, "host;", "", 1),
		"no date":           strings.Replace(good, ";x-amz-date", "", 1),
		"not sorted":        strings.Replace(good, "host;x-amz-date", "x-amz-date;host", 1),
		"twice":             strings.Replace(good, "host;", "host;host;", 1),
		"another header":    strings.Replace(good, "host;", "cookie;host;", 1),
		"too long":          good + strings.Repeat(" ", maxHeader),
		"more behind it":    good + ", x=y",
	} {
		rig.Is(t, rig.Err(ParseClaim(header)) != nil, true, "%s is refused", name)
	}
}

// TestKeysArePrivate: no verb prints a secret.
func TestKeysArePrivate(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		text := fmt.Sprintf(verb+verb, vectorKeys, []Keys{vectorKeys})
		rig.Is(t, strings.Contains(text, "EXAMPLE"), false, "%s prints %s", verb, text)
	}
}

func FuzzParseClaim(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=AK/20261122/eu-west-1/svc/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + strings.Repeat("0a", 32))
	f.Add("AWS4-HMAC-SHA256 Credential=////, SignedHeaders=, Signature=")
	f.Fuzz(func(t *testing.T, header string) {
		claim, err := ParseClaim(header)
		if err != nil {
			return
		}
		// What is taken can be spelled in one way.
		again := scheme + "Credential=" + claim.AccessKeyID + "/" + claim.day + "/" + claim.Scope.Region + "/" + claim.Scope.Service + "/" + terminator +
			", SignedHeaders=" + strings.Join(claim.signed, ";") + ", Signature=" + claim.signature
		rig.Is(t, again, header, "%q is read as", header)
	})
}
