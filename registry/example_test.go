package registry_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/registry"
	"github.com/execagent/execagent/relay"
)

// A registry in a folder, with a key for a harness, which asks what there is.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "registry-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := registry.OpenStore(ctx, registry.StoreConfig{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	text, key, err := store.CreateKey(ctx, registry.Key{Label: "my harness", Role: "harness", Environments: "build-*"})
	if err != nil {
		fmt.Println(err)
		return
	}
	server, err := registry.New(ctx, registry.Config{Store: store})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	front := httptest.NewServer(server) // for strangers: registry.NewFront
	defer front.Close()
	all, err := relay.Environments(ctx, relay.RegistryConfig{BaseURL: front.URL, Tokens: auth.Bearer(text)})
	fmt.Println(key.Label, key.Environments, all, err)
	// Output: my harness build-* [] <nil>
}
