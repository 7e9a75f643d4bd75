package mask

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
)

const (
	// maxProgram bounds the instructions of the program of a pattern.
	maxProgram = 20_000
	// maxSecret bounds the length of a credential, in bytes. A longer value is not a token.
	maxSecret = 4096
	// attempts bounds how often a placeholder is made again if the previous one is not usable.
	attempts = 32
)

// A shape is a pattern that matches a whole credential.
type shape struct {
	whole   *regexp.Regexp
	program *syntax.Prog
}

// newShape compiles a pattern. It refuses a pattern that matches the empty text or only one text,
// because no placeholder could match it.
func newShape(pattern string) (*shape, error) {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	if single(tree) {
		return nil, fmt.Errorf("pattern %q matches one text only", pattern)
	}
	anchored := `\A(?:` + pattern + `)\z`
	if tree, err = syntax.Parse(anchored, syntax.Perl); err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	if len(program.Inst) > maxProgram {
		return nil, fmt.Errorf("pattern is too large: %d instructions, at most %d", len(program.Inst), maxProgram)
	}
	whole, err := regexp.Compile(anchored)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	if whole.MatchString("") {
		return nil, fmt.Errorf("pattern %q matches the empty text", pattern)
	}
	return &shape{whole: whole, program: program}, nil
}

// single reports whether an expression matches at most one text.
func single(e *syntax.Regexp) bool {
	switch e.Op {
	case syntax.OpNoMatch, syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true
	case syntax.OpLiteral:
		return e.Flags&syntax.FoldCase == 0
	case syntax.OpCapture, syntax.OpConcat:
	case syntax.OpRepeat:
		if e.Min != e.Max {
			return false
		}
	default:
		return false
	}
	return !slices.ContainsFunc(e.Sub, func(sub *syntax.Regexp) bool { return !single(sub) })
}

// texts returns a function that makes texts of n bytes that the shape matches. It returns nil if
// there is no such text that a header can carry.
func (s *shape) texts(n int) func(*rand.Rand) string {
	ends := s.ends(n)
	if ends == nil || !ends[n][s.program.Start] {
		return nil
	}
	return func(r *rand.Rand) string { return s.text(ends, r) }
}

// text walks through the pattern's program. At each fork it takes a branch that can still end after
// exactly the remaining bytes. It returns "" if it finds no way to the end.
func (s *shape) text(ends [][]bool, r *rand.Rand) string {
	n := len(ends) - 1
	out := make([]byte, 0, n)
	pc := uint32(s.program.Start)
	for range len(s.program.Inst)*2 + n*len(s.program.Inst) { // a loop that consumes no byte ends by chance
		inst := &s.program.Inst[pc]
		left := n - len(out)
		switch inst.Op {
		case syntax.InstMatch:
			return string(out)
		case syntax.InstAlt, syntax.InstAltMatch:
			pc = inst.Out
			if a, b := ends[left][inst.Out], ends[left][inst.Arg]; !a || b && r.IntN(2) == 0 {
				pc = inst.Arg
			}
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			choices := characters(inst)
			out = append(out, choices[r.IntN(len(choices))])
			pc = inst.Out
		default:
			pc = inst.Out
		}
		if !ends[n-len(out)][pc] {
			return ""
		}
	}
	return ""
}

// ends returns, for each number of remaining bytes and each instruction, whether the program can
// reach its end from there with exactly these bytes.
func (s *shape) ends(n int) [][]bool {
	insts := s.program.Inst
	if n > maxSecret || n*len(insts) > maxSecret*maxProgram/4 {
		return nil
	}
	letters := make([]bool, len(insts)) // instructions that can match a character of the two sets below
	for pc := range insts {
		letters[pc] = len(characters(&insts[pc])) > 0
	}
	ends := make([][]bool, n+1)
	for left := range ends {
		now := make([]bool, len(insts))
		ends[left] = now
		for pc := range insts {
			switch inst := &insts[pc]; inst.Op {
			case syntax.InstMatch:
				now[pc] = left == 0
			case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
				now[pc] = left > 0 && letters[pc] && ends[left-1][inst.Out]
			}
		}
		for changed := true; changed; {
			changed = false
			for pc := len(insts) - 1; pc >= 0; pc-- {
				if now[pc] {
					continue
				}
				switch inst := &insts[pc]; inst.Op {
				case syntax.InstAlt, syntax.InstAltMatch:
					now[pc] = now[inst.Out] || now[inst.Arg]
				case syntax.InstCapture, syntax.InstNop:
					now[pc] = now[inst.Out]
				case syntax.InstEmptyWidth:
					switch op := syntax.EmptyOp(inst.Arg); {
					case op&(syntax.EmptyBeginText|syntax.EmptyBeginLine) != 0 && left != n,
						op&(syntax.EmptyEndText|syntax.EmptyEndLine) != 0 && left != 0:
					default: // word boundaries are checked later, when the whole text is matched
						now[pc] = now[inst.Out]
					}
				}
				changed = changed || now[pc]
			}
		}
	}
	return ends
}

const (
	alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	punctuation  = "-_.~+/=!#$%&*^|,;:?@()[]{}<>'`\"\\" // the other characters that a header may have, without the space
)

// characters returns the characters that an instruction matches: letters and digits if it matches
// any, else punctuation.
func characters(inst *syntax.Inst) []byte {
	switch inst.Op {
	case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
	default:
		return nil
	}
	var out []byte
	for _, set := range []string{alphanumeric, punctuation} {
		for _, c := range []byte(set) {
			if inst.MatchRune(rune(c)) {
				out = append(out, c)
			}
		}
		if len(out) > 0 {
			break
		}
	}
	return out
}
