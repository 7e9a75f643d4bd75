package relay

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// TestListEnvironments: what a registry may answer, and what is made of it.
func TestListEnvironments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		answers map[string]string // by query
		status  int
		want    []wire.Environment
		fails   string
	}{
		{name: "none", answers: map[string]string{"": `{"environments":[]}`}},
		{name: "one page", answers: map[string]string{"": `{"environments":[{"environment_id":"a","online":true,"online_since":"2026-01-02T03:04:05Z","executor":"x"},{"environment_id":"b","online":false}],"more":1}`},
			want: []wire.Environment{{ID: "a", Online: true, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Executor: "x"}, {ID: "b"}}},
		{name: "two pages", answers: map[string]string{
			"":        `{"environments":[{"environment_id":"a"}],"next":"a"}`,
			"after=a": `{"environments":[{"environment_id":"b"}]}`,
		}, want: []wire.Environment{{ID: "a"}, {ID: "b"}}},
		{name: "a name that does something to a terminal", answers: map[string]string{"": `{"environments":[{"environment_id":"a","executor":"\u001b[2Jx\ny"}]}`},
			want: []wire.Environment{{ID: "a", Executor: "\ufffd[2Jx y"}}},
		{name: "no id", answers: map[string]string{"": `{"environments":[{"environment_id":"$(rm -r /)"}]}`}, fails: "no environment id"},
		{name: "twice", answers: map[string]string{"": `{"environments":[{"environment_id":"a"},{"environment_id":"a"}]}`}, fails: "not in order"},
		{name: "the same page again", answers: map[string]string{"": `{"environments":[{"environment_id":"a"}],"next":"a"}`, "after=a": `{"environments":[{"environment_id":"a"}],"next":"a"}`}, fails: "not in order"},
		{name: "empty pages", answers: map[string]string{"": `{"environments":[{"environment_id":"a"}],"next":"a"}`, "after=a": `{"environments":[],"next":"a"}`}, fails: "not its last"},
		{name: "another next", answers: map[string]string{"": `{"environments":[{"environment_id":"a"}],"next":"b"}`}, fails: "not its last"},
		{name: "no JSON", answers: map[string]string{"": `nonsense`}, fails: "not the JSON object"},
		{name: "too long", answers: map[string]string{"": strings.Repeat(" ", 1<<20+1)}, fails: "longer than"},
		{name: "another registry", status: 404, answers: map[string]string{"": `not here`}, fails: "registry answered 404: not here"},
		{name: "a repeated key", status: 401, answers: map[string]string{"": `{"error":{"code":"unauthorized","message":"s3cret is no key"}}`}, fails: "registry answered 401 unauthorized: [redacted] is no key"},
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked := fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Header.Get("Authorization"), " ", r.ContentLength)
			rig.Is(t, asked, "GET "+wire.PathEnvironments+" Bearer s3cret 0", "asked")
			if tt.status != 0 {
				w.WriteHeader(tt.status)
			}
			fmt.Fprint(w, tt.answers[r.URL.RawQuery])
		}))
		got, err := Environments(t.Context(), RegistryConfig{BaseURL: web.URL + "/", Tokens: auth.Bearer("s3cret")})
		web.Close()
		says(t, err, tt.fails, "%s: Environments", tt.name)
		rig.Same(t, tt.name, tt.want, got)
	}
	says(t, rig.Err(Environments(t.Context(), RegistryConfig{BaseURL: "http://192.0.2.1", Tokens: auth.Bearer("x")})), "plain http", "in clear text")
}
