package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Methods of rpc.md 5; fs/rename and fs/applyPatch are ours (rpc.md 8).
const (
	MethodFSReadFile        = "fs/readFile"
	MethodFSWriteFile       = "fs/writeFile"
	MethodFSCreateDirectory = "fs/createDirectory"
	MethodFSGetMetadata     = "fs/getMetadata"
	MethodFSCanonicalize    = "fs/canonicalize"
	MethodFSReadDirectory   = "fs/readDirectory"
	MethodFSWalk            = "fs/walk"
	MethodFSRemove          = "fs/remove"
	MethodFSCopy            = "fs/copy"
	MethodFSRename          = "fs/rename"
	MethodFSApplyPatch      = "fs/applyPatch"
	MethodFSOpen            = "fs/open"
	MethodFSReadBlock       = "fs/readBlock"
	MethodFSWriteBlock      = "fs/writeBlock"
	MethodFSClose           = "fs/close"
	MethodFSWatchMissing    = "fs/watchMissing"
	MethodFSMissingChanged  = "fs/missingChanged" // notification, server to client
)

// PathParams are the params of a request about one path: fs/readFile,
// fs/getMetadata, fs/canonicalize and fs/readDirectory. The last two ignore
// FollowSymlinks.
type PathParams struct {
	Path PathURI `json:"path"`
	// With FollowSymlinks false a link anywhere in the path is refused.
	FollowSymlinks *bool    `json:"followSymlinks,omitempty"`
	Sandbox        *Sandbox `json:"sandbox,omitempty"`
}

func (p *PathParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.FollowSymlinks = follow(o)
	p.Sandbox = sandbox(o)
}

func follow(o *strictjson.Object) *bool {
	if !o.Has("followSymlinks") {
		return nil
	}
	return new(o.Bool("followSymlinks"))
}

// ReadFileResult answers fs/readFile.
type ReadFileResult struct {
	Data []byte `json:"dataBase64"`
}

func (r *ReadFileResult) AppendJSON(dst []byte) []byte {
	e := encoder{dst: dst}
	r.encode(&e)
	return e.dst
}

func (r *ReadFileResult) encode(e *encoder) {
	e.dst = append(e.dst, `{"dataBase64":`...)
	e.bytes(r.Data)
	e.dst = append(e.dst, '}')
}

func (r *ReadFileResult) UnmarshalObject(o *Object) { r.Data = o.Base64("dataBase64") }

// WriteFileParams replaces the content of a file. Decoded Data lies in the memory
// of the message and is valid as long as the message.
type WriteFileParams struct {
	Path           PathURI  `json:"path"`
	Data           []byte   `json:"dataBase64"`
	FollowSymlinks *bool    `json:"followSymlinks,omitempty"`
	Sandbox        *Sandbox `json:"sandbox,omitempty"`
	// DataError says why dataBase64 could not be decoded. It is no error of
	// decoding the params, because the method answers it with another code, after
	// the checks of the lifecycle.
	DataError error `json:"-"`
}

// HoldsMessage says that Data lies in the message.
func (*WriteFileParams) HoldsMessage() {}

func (p *WriteFileParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.Data, p.DataError = o.Base64Apart("dataBase64")
	p.FollowSymlinks = follow(o)
	p.Sandbox = sandbox(o)
}

// CreateDirectoryParams makes a directory; with Recursive (the default) its
// parents too.
type CreateDirectoryParams struct {
	Path           PathURI  `json:"path"`
	Recursive      *bool    `json:"recursive,omitempty"`
	FollowSymlinks *bool    `json:"followSymlinks,omitempty"`
	Sandbox        *Sandbox `json:"sandbox,omitempty"`
}

func (p *CreateDirectoryParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.Recursive = new(o.OptBool("recursive", true))
	p.FollowSymlinks = follow(o)
	p.Sandbox = sandbox(o)
}

// FileMetadata describes a file; for a link, its target. Only IsSymlink is about
// the path itself.
type FileMetadata struct {
	IsDirectory  bool   `json:"isDirectory"`
	IsFile       bool   `json:"isFile"`
	IsSymlink    bool   `json:"isSymlink"`
	Size         uint64 `json:"size"`         // bytes
	CreatedAtMs  int64  `json:"createdAtMs"`  // 0 if the file system does not know
	ModifiedAtMs int64  `json:"modifiedAtMs"` // since 1970
}

// AppendJSON appends the result of fs/getMetadata.
func (m *FileMetadata) AppendJSON(dst []byte) []byte {
	dst = appendBool(dst, `{"isDirectory":`, m.IsDirectory)
	dst = appendBool(dst, `,"isFile":`, m.IsFile)
	dst = appendBool(dst, `,"isSymlink":`, m.IsSymlink)
	dst = appendUint(dst, `,"size":`, m.Size)
	dst = appendInt(dst, `,"createdAtMs":`, m.CreatedAtMs)
	dst = appendInt(dst, `,"modifiedAtMs":`, m.ModifiedAtMs)
	return append(dst, '}')
}

// CanonicalizeResult answers fs/canonicalize.
type CanonicalizeResult struct {
	Path PathURI `json:"path"`
}

// ReadDirectoryResult answers fs/readDirectory, in the order of the OS.
type ReadDirectoryResult struct {
	Entries []DirectoryEntry `json:"entries"`
}

// DirectoryEntry is one name in a directory; the flags follow links.
type DirectoryEntry struct {
	FileName    string `json:"fileName"` // not UTF-8: lossy
	IsDirectory bool   `json:"isDirectory"`
	IsFile      bool   `json:"isFile"`
}

func (r *ReadDirectoryResult) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"entries":[`...)
	for i, e := range r.Entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(dst, `{"fileName":`, e.FileName)
		dst = appendBool(dst, `,"isDirectory":`, e.IsDirectory)
		dst = appendBool(dst, `,"isFile":`, e.IsFile)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}

// WalkParams lists a tree (rpc.md 5.4).
type WalkParams struct {
	Path    PathURI     `json:"path"`
	Options WalkOptions `json:"options"`
	Sandbox *Sandbox    `json:"sandbox,omitempty"`
}

// WalkOptions bound a walk.
type WalkOptions struct {
	MaxDepth                uint64 `json:"maxDepth"`
	MaxDirectories          uint64 `json:"maxDirectories"`
	MaxEntries              uint64 `json:"maxEntries"`
	FollowDirectorySymlinks bool   `json:"followDirectorySymlinks"`
	PruneHiddenDirectories  bool   `json:"pruneHiddenDirectories"`
}

func (p *WalkParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	o.In("options", func(o *strictjson.Object) {
		p.Options = WalkOptions{
			MaxDepth:                o.Uint64("maxDepth"),
			MaxDirectories:          o.Uint64("maxDirectories"),
			MaxEntries:              o.Uint64("maxEntries"),
			FollowDirectorySymlinks: o.Bool("followDirectorySymlinks"),
			PruneHiddenDirectories:  o.BoolDefault("pruneHiddenDirectories", false),
		}
	})
	p.Sandbox = sandbox(o)
}

// WalkResult answers fs/walk. Paths are native; they become URIs on the wire.
type WalkResult struct {
	// Root is the root as the request has it, for [PathURI.Below]; the zero PathURI if it does not
	// matter. It is not sent.
	Root      PathURI
	Entries   []WalkEntry
	Errors    []WalkError
	Truncated bool
}

// WalkEntry is one file or directory below the root of a walk.
type WalkEntry struct {
	Path      string
	Directory bool
}

// WalkError is a part of the tree that could not be read.
type WalkError struct {
	Path    string
	Message string
}

func (r *WalkResult) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"entries":[`...)
	for i, e := range r.Entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"path":"`...)
		dst = r.Root.appendBelow(dst, e.Path)
		if e.Directory {
			dst = append(dst, `","kind":"directory"}`...)
		} else {
			dst = append(dst, `","kind":"file"}`...)
		}
	}
	dst = append(dst, `],"errors":[`...)
	for i, e := range r.Errors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"path":"`...)
		dst = r.Root.appendBelow(dst, e.Path)
		dst = appendText(dst, `","message":`, e.Message)
		dst = append(dst, '}')
	}
	dst = appendBool(dst, `],"truncated":`, r.Truncated)
	return append(dst, '}')
}

func (r *WalkResult) UnmarshalObject(o *Object) {
	o.Each("entries", func(o *strictjson.Object) {
		r.Entries = append(r.Entries, WalkEntry{
			Path:      nativeMember(o, "path"),
			Directory: o.OneOf("kind", "file", "directory") == "directory",
		})
	})
	o.Each("errors", func(o *strictjson.Object) {
		r.Errors = append(r.Errors, WalkError{Path: nativeMember(o, "path"), Message: o.String("message")})
	})
	r.Truncated = o.Bool("truncated")
}

// RemoveParams deletes a file, a link (never its target) or a tree. Both
// flags are true when nil.
type RemoveParams struct {
	Path           PathURI  `json:"path"`
	Recursive      *bool    `json:"recursive,omitempty"`
	Force          *bool    `json:"force,omitempty"`
	FollowSymlinks *bool    `json:"followSymlinks,omitempty"`
	Sandbox        *Sandbox `json:"sandbox,omitempty"`
}

func (p *RemoveParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.Recursive = new(o.OptBool("recursive", true))
	p.Force = new(o.OptBool("force", true))
	p.FollowSymlinks = follow(o)
	p.Sandbox = sandbox(o)
}

// CopyParams copies a file, a link or, with Recursive, a tree.
type CopyParams struct {
	SourcePath      PathURI  `json:"sourcePath"`
	DestinationPath PathURI  `json:"destinationPath"`
	Recursive       bool     `json:"recursive"`
	Sandbox         *Sandbox `json:"sandbox,omitempty"`
}

func (p *CopyParams) UnmarshalObject(o *Object) {
	p.SourcePath = pathMember(o, "sourcePath")
	p.DestinationPath = pathMember(o, "destinationPath")
	p.Recursive = o.Bool("recursive")
	p.Sandbox = sandbox(o)
}

// RenameParams moves a path within one mount (rpc.md 8). Replace is true when nil.
type RenameParams struct {
	SourcePath      PathURI  `json:"sourcePath"`
	DestinationPath PathURI  `json:"destinationPath"`
	Replace         *bool    `json:"replace,omitempty"`
	Sandbox         *Sandbox `json:"sandbox,omitempty"`
}

func (p *RenameParams) UnmarshalObject(o *Object) {
	p.SourcePath = pathMember(o, "sourcePath")
	p.DestinationPath = pathMember(o, "destinationPath")
	p.Replace = new(o.BoolDefault("replace", true))
	p.Sandbox = sandbox(o)
}

// ApplyPatchParams change files as a patch says, all of them or none (rpc.md 8.5).
type ApplyPatchParams struct {
	Patch string `json:"patch"`
	// Cwd is the folder of relative paths in the patch.
	Cwd PathURI `json:"cwd"`
	// With DryRun nothing is changed, and the result has a diff.
	DryRun  bool     `json:"dryRun,omitempty"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

// HoldsMessage says that the patch may be as large as the message.
func (*ApplyPatchParams) HoldsMessage() {}

func (p *ApplyPatchParams) UnmarshalObject(o *Object) {
	p.Patch = o.String("patch")
	p.Cwd = pathMember(o, "cwd")
	p.DryRun = o.OptBool("dryRun", false)
	p.Sandbox = sandbox(o)
}

// ApplyPatchResult answers fs/applyPatch.
type ApplyPatchResult struct {
	// Output is what the tool apply_patch prints.
	Output string `json:"output"`
	// Changes are in the order of the patch.
	Changes []PatchedFile `json:"changes"`
	// Diff is set after a dry run.
	Diff *string `json:"diff,omitempty"`
}

// The kinds of change of a file.
const (
	PatchAdded   = "added"
	PatchUpdated = "updated"
	PatchDeleted = "deleted"
)

// PatchedFile is a file that a patch changed. From is its old path, if it was moved.
type PatchedFile struct {
	Kind string   `json:"kind"`
	Path PathURI  `json:"path"`
	From *PathURI `json:"from,omitempty"`
}

// Modes of fs/open.
const (
	OpenRead    = "read"
	OpenReplace = "replace"
)

// OpenParams opens a file for block access under an id that the client chose.
type OpenParams struct {
	HandleID string   `json:"handleId"`
	Path     PathURI  `json:"path"`
	Mode     string   `json:"mode,omitempty"` // read (default) or replace
	Sandbox  *Sandbox `json:"sandbox,omitempty"`
}

func (p *OpenParams) UnmarshalObject(o *Object) {
	p.HandleID = o.String("handleId")
	p.Path = pathMember(o, "path")
	p.Mode = o.OneOfDefault("mode", OpenRead, OpenReplace)
	p.Sandbox = sandbox(o)
}

// HandleParams names a file handle: the params of fs/close and the result of
// fs/open.
type HandleParams struct {
	HandleID string `json:"handleId"`
}

func (p *HandleParams) UnmarshalObject(o *Object) { p.HandleID = o.String("handleId") }

// ReadBlockParams reads up to Len bytes (1..1,048,576) at Offset.
type ReadBlockParams struct {
	HandleID string `json:"handleId"`
	Offset   uint64 `json:"offset"`
	Len      uint64 `json:"len"`
}

func (p *ReadBlockParams) UnmarshalObject(o *Object) {
	p.HandleID = o.String("handleId")
	p.Offset = o.Uint64("offset")
	p.Len = o.Uint64("len")
}

// ReadBlockResult answers fs/readBlock. EOF is true if it has fewer bytes than
// requested.
type ReadBlockResult struct {
	Chunk []byte `json:"chunk"`
	EOF   bool   `json:"eof"`
}

func (r *ReadBlockResult) AppendJSON(dst []byte) []byte {
	e := encoder{dst: dst}
	r.encode(&e)
	return e.dst
}

func (r *ReadBlockResult) encode(e *encoder) {
	e.dst = append(e.dst, `{"chunk":`...)
	e.bytes(r.Chunk)
	e.dst = appendBool(e.dst, `,"eof":`, r.EOF)
	e.dst = append(e.dst, '}')
}

func (r *ReadBlockResult) UnmarshalObject(o *Object) {
	r.Chunk = o.Base64("chunk")
	r.EOF = o.Bool("eof")
}

// WriteBlockParams writes a chunk (1..1,048,576 bytes) at Offset. A decoded Chunk
// lies in the memory of the message and is valid as long as the message.
type WriteBlockParams struct {
	HandleID string `json:"handleId"`
	Offset   uint64 `json:"offset"`
	Chunk    []byte `json:"chunk"`
}

// HoldsMessage says that Chunk lies in the message.
func (*WriteBlockParams) HoldsMessage() {}

func (p *WriteBlockParams) UnmarshalObject(o *Object) {
	p.HandleID = o.String("handleId")
	p.Offset = o.Uint64("offset")
	p.Chunk = o.Base64InPlace("chunk")
}

// WatchMissingParams sets the connection's one-shot watch (rpc.md 5.6).
type WatchMissingParams struct {
	WatchID uint64    `json:"watchId"`
	Missing []PathURI `json:"missing"`
	Present *PathURI  `json:"present"`
	Sandbox *Sandbox  `json:"sandbox,omitempty"`
}

func (p *WatchMissingParams) UnmarshalObject(o *Object) {
	p.WatchID = o.Uint64("watchId")
	p.Missing = pathsMember(o, "missing")
	p.Present = optPathMember(o, "present")
	p.Sandbox = sandbox(o)
}

// WatchMissingResult answers fs/watchMissing. Watching reports whether a watch
// was set.
type WatchMissingResult struct {
	Watching bool `json:"watching"`
}

// MissingChangedNotification announces that a watch has fired and is over.
type MissingChangedNotification struct {
	WatchID uint64 `json:"watchId"`
}

func (n *MissingChangedNotification) UnmarshalObject(o *Object) {
	n.WatchID = o.Uint64("watchId")
}
