package client

import (
	"context"

	"github.com/execagent/execagent/protocol"
)

// Search looks for names, or with a pattern for lines of files, below path or in the file path, see
// [protocol.SearchParams]: Path and Sandbox of params are set by Search. A bound that was reached is no error,
// but Truncated names it. It needs the server's fsSearch.
func (f *FS) Search(ctx context.Context, path string, params protocol.SearchParams) (*protocol.SearchResult, error) {
	err := f.client.require(ctx, "searching files", func(c *protocol.Capabilities) bool { return c.FSSearch })
	if err != nil {
		return nil, pathError("search", path, err)
	}
	params.Path, params.Sandbox = protocol.NewPathURI(path), f.sandbox
	r := new(protocol.SearchResult)
	if err := f.ask(ctx, "search", path, protocol.MethodFSSearch, &params, r); err != nil {
		return nil, err
	}
	return r, nil
}
