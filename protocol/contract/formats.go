package contract

// Format is one of the texts that are made of the contract.
type Format struct {
	// Name is its name for a user, and File its place below the root of the repository.
	Name, File string
	make       func(*Contract) []byte
}

// Make returns the text of a format by its name, or nil.
func Make(name string) []byte {
	for _, f := range Formats {
		if f.Name == name {
			return f.Make()
		}
	}
	return nil
}

// Make returns the text.
func (f *Format) Make() []byte { return f.make(Load()) }

// Formats are all formats.
var Formats = []Format{
	{"schema", "docs/contract/schema.json", func(c *Contract) []byte { return encode(schema(c)) }},
	{"meta", "docs/contract/meta.json", func(c *Contract) []byte { return encode(meta(c)) }},
	{"openrpc", "docs/contract/openrpc.json", func(c *Contract) []byte { return encode(openrpc(c)) }},
	{"markdown", "docs/contract/README.md", func(c *Contract) []byte { return []byte(page(c)) }},
	{"python", "sdk/python/src/execagent/_wire.py", func(c *Contract) []byte { return []byte(python(c)) }},
	{"typescript", "sdk/typescript/src/wire.ts", func(c *Contract) []byte { return []byte(typescript(c)) }},
}
