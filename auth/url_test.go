package auth

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestIsLoopback(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST": true, "127.0.0.1": true, "127.255.1.2": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "example.com": false, "localhost.example.com": false, "127.0.0.1.example.com": false, "10.0.0.1": false,
		"0.0.0.0": false, "::": false, "127.1": false, "2130706433": false, "localhost.": false, "[::1]": false,
	} {
		rig.Is(t, IsLoopback(host), want, "IsLoopback(%q)", host)
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/urls.txt", "urls", 3) {
		u, err := checkURL(row[0])
		if !failed(t, row[0], err, row[2]) {
			rig.Is(t, u.String(), row[1], "checkURL(%q)", row[0])
		}
	}
}

func TestCheckBase(t *testing.T) {
	t.Parallel()
	token := &bearer{token: new("t"), httpsOnly: true}
	for _, tt := range []struct {
		raw           string
		tokens        TokenSource
		want, wantErr string
	}{
		{raw: " https://example.com/a%20b/// ", want: "https://example.com/a%20b"},
		{raw: "https://example.com/a%2Fb/", want: "https://example.com/a%2Fb"},
		{raw: "http://127.0.0.1:1/", want: "http://127.0.0.1:1"},
		{raw: "http://127.0.0.1:1/", tokens: Bearer("t"), want: "http://127.0.0.1:1"},
		{raw: "https://127.0.0.1:1/", tokens: token, want: "https://127.0.0.1:1"},
		{raw: "http://127.0.0.1:1/", tokens: token, wantErr: "not https"},
		{raw: "https://example.com/?sig=s3cret", wantErr: "query"},
		{raw: "https://example.com/?", wantErr: "query"},
		{raw: "http://example.com/", wantErr: "plain http"},
	} {
		u, err := CheckBase(tt.raw, tt.tokens)
		if !failed(t, tt.raw, err, tt.wantErr) {
			rig.Is(t, u.String(), tt.want, "CheckBase(%q, %T)", tt.raw, tt.tokens)
		}
	}
}

func TestDirect(t *testing.T) {
	t.Parallel()
	proxy := &url.URL{Scheme: "http", Host: "proxy.test"}
	direct := besideLoopback(func(*http.Request) (*url.URL, error) { return proxy, nil })
	for host, want := range map[string]*url.URL{"LOCALHOST:1": nil, "localhost": nil, "[::1%25lo]:1": nil, "127.0.0.1:1": nil, "example.com": proxy} {
		r := rig.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+"/", nil))
		rig.Is(t, fmt.Sprint(direct(r)), fmt.Sprint(want, nil), "%s: proxy", host)
	}
	rig.Is(t, besideLoopback(nil) == nil, true, "without a proxy there is none")
}
