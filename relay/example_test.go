package relay_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/relay"
)

// A harness asks a registry, here one that always says the same, which environments its key is for.
func ExampleEnvironments() {
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"environments":[{"environment_id":"build-1","online":true,"executor":"the big machine"},{"environment_id":"build-2"}]}`)
	}))
	defer registry.Close()
	all, err := relay.Environments(context.Background(), relay.RegistryConfig{BaseURL: registry.URL, Tokens: auth.Bearer("key")})
	for _, e := range all {
		fmt.Printf("%s %v %q\n", e.ID, e.Online, e.Executor)
	}
	fmt.Println(err)
	// Output:
	// build-1 true "the big machine"
	// build-2 false ""
	// <nil>
}
