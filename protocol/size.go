package protocol

import "encoding/base64"

// SizeHint methods estimate the size of a large message in bytes, so that its
// first buffer is large enough.

func base64Size(b []byte) int { return base64.StdEncoding.EncodedLen(len(b)) }

func (r *ReadFileResult) SizeHint() int     { return base64Size(r.Data) }
func (r *ReadBlockResult) SizeHint() int    { return base64Size(r.Chunk) }
func (n *OutputNotification) SizeHint() int { return len(n.ProcessID) + base64Size(n.Chunk) }
func (p *WriteParams) SizeHint() int        { return len(p.ProcessID) + len(p.WriteID) + base64Size(p.Chunk) }
func (d *SocketData) SizeHint() int         { return len(d.SocketID) + base64Size(d.Chunk) }
func (p *SocketWriteParams) SizeHint() int  { return len(p.SocketID) + base64Size(p.Chunk) }
func (d *HTTPBodyDelta) SizeHint() int      { return len(d.RequestID) + base64Size(d.DeltaBase64) }
func (r *HTTPResponse) SizeHint() int       { return 64*len(r.Headers) + base64Size(r.BodyBase64) }

func (r *ReadResult) SizeHint() int {
	n := 0
	for i := range r.Chunks {
		n += 64 + base64Size(r.Chunks[i].Chunk)
	}
	return n
}

func (r *ReadDirectoryResult) SizeHint() int { return 72 * len(r.Entries) }

func (r *WalkResult) SizeHint() int {
	n := 128 * len(r.Errors)
	for i := range r.Entries {
		n += len(r.Entries[i].Path) + 40
	}
	return n
}
