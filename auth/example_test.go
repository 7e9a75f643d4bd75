package auth_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/execagent/execagent/auth"
)

// A source sets the headers of a request, and never shows what it holds.
func ExampleTokenSource() {
	source := auth.APIKey("a-secret-key")
	header := http.Header{}
	err := source.Authorize(context.Background(), header)
	fmt.Println(header.Get("Authorization"), err)
	fmt.Printf("%v\n", source)
	// Output:
	// Bearer a-secret-key <nil>
	// [redacted]
}
