package agent

import (
	"context"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
)

// maxSearches is how many searches of all connections run at once. Others wait, and nobody waits for those of
// another owner. It bounds the memory of the searches, each of which can take 40 MiB.
const maxSearches = 8

// searchResult gives back its share of memory when it has been sent.
type searchResult struct {
	protocol.SearchResult
	share answers.Share
}

func (r *searchResult) Sent() { r.share.Release() }

func (c *connection) search(ctx context.Context, p protocol.SearchParams) (*searchResult, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := c.agent.searches.Wait(ctx, c.owner, 1); err != nil {
		return nil, err
	}
	found, err := files.Search(ctx, path, searchOptions(&p))
	c.agent.searches.Give(c.owner, 1)
	if err != nil {
		return nil, err
	}
	r := &searchResult{share: c.share(c.listings)}
	if err := r.share.List(ctx, searchCost(&found)); err != nil {
		return nil, err
	}
	r.Root, r.Truncated, r.FilesRead, r.BinaryFiles = p.Path, found.Truncated, found.FilesRead, found.BinaryFiles
	for _, f := range found.Files {
		listed := protocol.SearchedFile{Path: f.Path, Kind: protocol.FileKind(f.Kind)}
		for _, m := range f.Matches {
			listed.Matches = append(listed.Matches, protocol.SearchMatch(m))
		}
		r.Files = append(r.Files, listed)
	}
	for _, e := range found.Errors {
		r.Errors = append(r.Errors, protocol.WalkError{Path: e.Path, Message: errorText(e.Err)})
	}
	return r, nil
}

// searchOptions returns the options of a request, with what it leaves to the server.
func searchOptions(p *protocol.SearchParams) fsops.SearchOptions {
	o := fsops.SearchOptions{
		Globs: p.Globs, Literal: p.Literal, IgnoreCase: p.IgnoreCase, Hidden: p.Hidden, NoIgnore: p.NoIgnore,
		Before: or(p.Before, 0), After: or(p.After, 0),
		MaxMatches: or(p.MaxMatches, protocol.DefaultSearchMatches), MaxFileMatches: or(p.MaxFileMatches, 0),
		MaxFiles: or(p.MaxFiles, protocol.DefaultSearchFiles), MaxDepth: or(p.MaxDepth, protocol.MaxSearchDepth),
		MaxLine: or(p.MaxLineBytes, protocol.DefaultSearchLineBytes),
		Time:    milliseconds(or(p.TimeoutMs, protocol.DefaultSearchMs)),
	}
	if p.Pattern != nil {
		o.Pattern = *p.Pattern
	}
	if p.Kind != nil {
		o.Kind = string(*p.Kind)
	}
	return o
}

func or[T any](given *T, otherwise T) T {
	if given == nil {
		return otherwise
	}
	return *given
}

// searchCost is the cost of a result in bytes, as read and in the message.
func searchCost(r *fsops.SearchResult) (cost int64) {
	for _, f := range r.Files {
		cost += answers.ListedCost(len(f.Path))
		for _, m := range f.Matches {
			cost += answers.ListedCost(len(m.Text))
			for _, line := range append(m.Before, m.After...) {
				cost += answers.ListedCost(len(line))
			}
		}
	}
	for _, e := range r.Errors {
		cost += answers.ListedCost(len(e.Path))
	}
	return cost
}
