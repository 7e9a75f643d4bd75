package protocol

import (
	"encoding/json"

	"github.com/execagent/execagent/internal/strictjson"
)

// Methods of rpc.md 5; fs/getMetadataMany, fs/rename and fs/applyPatch are ours (rpc.md 8).
const (
	MethodFSReadFile        = "fs/readFile"
	MethodFSWriteFile       = "fs/writeFile"
	MethodFSCreateDirectory = "fs/createDirectory"
	MethodFSGetMetadata     = "fs/getMetadata"
	MethodFSGetMetadataMany = "fs/getMetadataMany"
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

// PathParams are the params of fs/readFile.
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

// Lstat asks for what a path or a name is itself, without following a link at its end; Stat follows it.
const (
	Stat  = "stat"
	Lstat = "lstat"
)

// GetMetadataParams are the params of fs/getMetadata.
type GetMetadataParams struct {
	Path           PathURI `json:"path"`
	FollowSymlinks *bool   `json:"followSymlinks,omitempty"`
	// Details is [Stat] or [Lstat], to get the members of [FileMetadata] behind the blank line; "": without
	// them. Only where the server has fsMetadata.
	Details string   `json:"details,omitempty"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

func (p *GetMetadataParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.FollowSymlinks = follow(o)
	p.Details = optOneOf(o, "details", Stat, Lstat)
	p.Sandbox = sandbox(o)
}

// MaxManyPaths is how many paths one fs/getMetadataMany may have.
const MaxManyPaths = 1024

// GetMetadataManyParams are the params of fs/getMetadataMany, which is fs/getMetadata for many paths.
type GetMetadataManyParams struct {
	Paths          []PathURI `json:"paths"` // 1 to [MaxManyPaths]
	FollowSymlinks *bool     `json:"followSymlinks,omitempty"`
	Details        string    `json:"details,omitempty"`
	Sandbox        *Sandbox  `json:"sandbox,omitempty"`
}

func (p *GetMetadataManyParams) UnmarshalObject(o *Object) {
	if p.Paths = pathsMember(o, "paths"); len(p.Paths) == 0 || len(p.Paths) > MaxManyPaths {
		o.Fail("paths", "has %d elements, not 1 to %d", len(p.Paths), MaxManyPaths)
	}
	p.FollowSymlinks = follow(o)
	p.Details = optOneOf(o, "details", Stat, Lstat)
	p.Sandbox = sandbox(o)
}

// GetMetadataManyResult answers fs/getMetadataMany: one element for each path, in their order.
type GetMetadataManyResult struct {
	Files []FileOrError `json:"files"`
}

// FileOrError has one of the two.
type FileOrError struct {
	Metadata *FileMetadata `json:"metadata,omitempty"`
	Error    *ErrorObject  `json:"error,omitempty"`
}

// ErrorObject is an [Error] within a result.
type ErrorObject struct {
	Code    Code            `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// CanonicalizeParams are the params of fs/canonicalize.
type CanonicalizeParams struct {
	Path           PathURI `json:"path"`
	FollowSymlinks *bool   `json:"followSymlinks,omitempty"` // has no effect
	// AllowMissing: names at the end of the path may be missing. Only where the server has fsCanonicalizeMissing.
	AllowMissing bool     `json:"allowMissing,omitempty"`
	Sandbox      *Sandbox `json:"sandbox,omitempty"`
}

func (p *CanonicalizeParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.FollowSymlinks = follow(o)
	p.AllowMissing = o.OptBool("allowMissing", false)
	p.Sandbox = sandbox(o)
}

// ReadDirectoryParams are the params of fs/readDirectory.
type ReadDirectoryParams struct {
	Path           PathURI `json:"path"`
	FollowSymlinks *bool   `json:"followSymlinks,omitempty"` // has no effect
	// Entries is [Lstat] to get what the names are themselves, also links that lead nowhere, with the members
	// of [DirectoryEntry] behind the blank line. Only where the server has fsReadDirectoryLstat.
	Entries string   `json:"entries,omitempty"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

func (p *ReadDirectoryParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.FollowSymlinks = follow(o)
	p.Entries = optOneOf(o, "entries", Lstat)
	p.Sandbox = sandbox(o)
}

// optOneOf reads a word; "" if it is absent or null.
func optOneOf(o *Object, name string, words ...string) string {
	if !o.Has(name) {
		return ""
	}
	return o.OneOf(name, words...)
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
	Path           PathURI `json:"path"`
	Data           []byte  `json:"dataBase64"`
	FollowSymlinks *bool   `json:"followSymlinks,omitempty"`
	// The next four need a server with fsWriteOptions. Mode has the permissions of the file afterwards, at
	// most 0777; nil: those that it has, or those of a new file.
	Mode *uint32 `json:"mode,omitempty"`
	// Parents makes missing directories of the path.
	Parents bool `json:"parents,omitempty"`
	// Exclusive makes a new file: a name that exists is an error.
	Exclusive bool `json:"exclusive,omitempty"`
	// Atomic replaces the file as a whole: others see the old content or the new one.
	Atomic  bool     `json:"atomic,omitempty"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	// DataError says why dataBase64 could not be decoded. It is no error of
	// decoding the params, because the method answers it with another code, after
	// the checks of the lifecycle.
	DataError error `json:"-"`
}

// MaxMode is the highest mode of fs/writeFile: permissions, without set-ID bits and the sticky bit.
const MaxMode = 0o777

// HoldsMessage says that Data lies in the message.
func (*WriteFileParams) HoldsMessage() {}

func (p *WriteFileParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	p.Data, p.DataError = o.Base64Apart("dataBase64")
	p.FollowSymlinks = follow(o)
	if mode := o.OptUint64("mode"); mode != nil {
		if p.Mode = new(uint32(min(*mode, MaxMode+1))); *p.Mode > MaxMode {
			o.Fail("mode", "%d is out of range, at most %d (octal 777)", *mode, MaxMode)
		}
	}
	p.Parents = o.OptBool("parents", false)
	p.Exclusive = o.OptBool("exclusive", false)
	p.Atomic = o.OptBool("atomic", false)
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

// Types of files.
const (
	TypeFile            = "file"
	TypeDirectory       = "directory"
	TypeSymlink         = "symlink"
	TypeFifo            = "fifo"
	TypeSocket          = "socket"
	TypeBlockDevice     = "blockDevice"
	TypeCharacterDevice = "characterDevice"
)

// FileMetadata describes a file; for a link, its target. Only IsSymlink is about
// the path itself. With [Lstat] all is about the path itself. The members behind the
// blank line come with [GetMetadataParams.Details]; a sandbox may show only the type.
type FileMetadata struct {
	IsDirectory  bool   `json:"isDirectory"`
	IsFile       bool   `json:"isFile"`
	IsSymlink    bool   `json:"isSymlink"`
	Size         uint64 `json:"size"`         // bytes
	CreatedAtMs  int64  `json:"createdAtMs"`  // 0 if the file system does not know
	ModifiedAtMs int64  `json:"modifiedAtMs"` // since 1970

	Type  string  `json:"type,omitempty"`
	Mode  *uint32 `json:"mode,omitempty"` // permissions, set-ID bits and the sticky bit
	UID   *uint32 `json:"uid,omitempty"`
	GID   *uint32 `json:"gid,omitempty"`
	Owner string  `json:"owner,omitempty"` // the name of the uid, if the server knows one
	Group string  `json:"group,omitempty"`
	// LinkTarget is what a link leads to, with [Lstat]; not UTF-8: lossy.
	LinkTarget string `json:"linkTarget,omitempty"`
}

// AppendJSON appends the result of fs/getMetadata.
func (m *FileMetadata) AppendJSON(dst []byte) []byte {
	dst = appendBool(dst, `{"isDirectory":`, m.IsDirectory)
	dst = appendBool(dst, `,"isFile":`, m.IsFile)
	dst = appendBool(dst, `,"isSymlink":`, m.IsSymlink)
	dst = appendUint(dst, `,"size":`, m.Size)
	dst = appendInt(dst, `,"createdAtMs":`, m.CreatedAtMs)
	dst = appendInt(dst, `,"modifiedAtMs":`, m.ModifiedAtMs)
	dst = appendWord(dst, `,"type":`, m.Type)
	for _, n := range []struct {
		name  string
		value *uint32
	}{{`,"mode":`, m.Mode}, {`,"uid":`, m.UID}, {`,"gid":`, m.GID}} {
		if n.value != nil {
			dst = appendUint(dst, n.name, uint64(*n.value))
		}
	}
	dst = appendWord(dst, `,"owner":`, m.Owner)
	dst = appendWord(dst, `,"group":`, m.Group)
	dst = appendWord(dst, `,"linkTarget":`, m.LinkTarget)
	return append(dst, '}')
}

// appendWord appends a member that is absent if it is empty.
func appendWord(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return appendText(dst, name, value)
}

// AppendJSON appends the result of fs/getMetadataMany.
func (r *GetMetadataManyResult) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"files":[`...)
	for i, f := range r.Files {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		if f.Metadata != nil {
			dst = f.Metadata.AppendJSON(append(dst, `"metadata":`...))
		}
		if f.Metadata != nil && f.Error != nil {
			dst = append(dst, ',')
		}
		if f.Error != nil {
			dst = appendInt(dst, `"error":{"code":`, int64(f.Error.Code))
			dst = appendText(dst, `,"message":`, f.Error.Message)
			if f.Error.Data != nil {
				dst = append(append(dst, `,"data":`...), f.Error.Data...)
			}
			dst = append(dst, '}')
		}
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}

// CanonicalizeResult answers fs/canonicalize.
type CanonicalizeResult struct {
	Path PathURI `json:"path"`
}

// ReadDirectoryResult answers fs/readDirectory, in the order of the OS.
type ReadDirectoryResult struct {
	Entries []DirectoryEntry `json:"entries"`
}

// DirectoryEntry is one name in a directory; the flags follow links. With [Lstat] they do not, and
// the members behind the blank line are there too, as far as they are known.
type DirectoryEntry struct {
	FileName    string `json:"fileName"` // not UTF-8: lossy
	IsDirectory bool   `json:"isDirectory"`
	IsFile      bool   `json:"isFile"`

	Type         string  `json:"type,omitempty"`
	Size         *uint64 `json:"size,omitempty"` // bytes
	ModifiedAtMs *int64  `json:"modifiedAtMs,omitempty"`
	Mode         *uint32 `json:"mode,omitempty"`
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
		dst = appendWord(dst, `,"type":`, e.Type)
		if e.Size != nil {
			dst = appendUint(dst, `,"size":`, *e.Size)
		}
		if e.ModifiedAtMs != nil {
			dst = appendInt(dst, `,"modifiedAtMs":`, *e.ModifiedAtMs)
		}
		if e.Mode != nil {
			dst = appendUint(dst, `,"mode":`, uint64(*e.Mode))
		}
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
	dst = r.Root.appendErrors(dst, r.Errors)
	dst = appendBool(dst, `],"truncated":`, r.Truncated)
	return append(dst, '}')
}

// appendErrors appends errors about paths below p.
func (p PathURI) appendErrors(dst []byte, errors []WalkError) []byte {
	for i, e := range errors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"path":"`...)
		dst = p.appendBelow(dst, e.Path)
		dst = appendText(dst, `","message":`, e.Message)
		dst = append(dst, '}')
	}
	return dst
}

func (r *WalkResult) UnmarshalObject(o *Object) {
	o.Each("entries", func(o *strictjson.Object) {
		r.Entries = append(r.Entries, WalkEntry{
			Path:      nativeMember(o, "path"),
			Directory: o.OneOf("kind", "file", "directory") == "directory",
		})
	})
	r.Errors = walkErrors(o)
	r.Truncated = o.Bool("truncated")
}

func walkErrors(o *strictjson.Object) (errors []WalkError) {
	o.Each("errors", func(o *strictjson.Object) {
		errors = append(errors, WalkError{Path: nativeMember(o, "path"), Message: o.String("message")})
	})
	return errors
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
