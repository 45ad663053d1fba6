package lpc

import (
	"time"

	"learnedprefixcache/lpcv1"
)

// Engine is what a scheduler calls: admission, end, eviction. It belongs to the scheduler's goroutine. Its guard puts credit into
// force once the shadows show that it pays, and least recent use where it does not.
type Engine struct {
	Client  *Client
	Cache   *Cache
	guard   *Guard // nil: credit is always in force
	shadows *Shadows
	late    map[string]*ended
	waiting []*ended // the same, by when they ended
}

// A request that has ended before its answer was there.
type ended struct {
	id           string
	chain        []string
	conversation string
	tLast        float64
	until        time.Time
}

// NewEngine joins a client and a cache of so many blocks, under a guard. guarded false is for those who compare themselves: credit
// is in force from the start.
func NewEngine(client *Client, blocks int, guarded bool) *Engine {
	e := &Engine{Client: client, Cache: NewCache(blocks), late: map[string]*ended{}}
	if guarded {
		e.guard, e.shadows = &Guard{}, NewShadows(blocks)
	}
	e.Cache.Trust(!guarded)
	return e
}

// Admitted asks about a request and pins the blocks of its prompt; it returns how many of the first of them are cached.
func (e *Engine) Admitted(id string, conversation *lpcv1.Conversation, chain []string) int {
	e.Client.Ask(id, conversation)
	return e.Cache.Use(chain)
}

// Ended frees the blocks of a request that came to its end, or (completed false) was aborted: then its prediction counts for nothing.
// now: seconds since the epoch. It returns the credit that they got, which orders while the guard trusts it.
func (e *Engine) Ended(id, conversation string, chain []string, completed bool, now float64) float64 {
	worth := none
	if !completed {
		e.Client.Forget(id)
	} else if answer, answered, expected := e.Client.Take(id); answered {
		worth = answer.worth
	} else if expected && len(e.waiting) < Waiting {
		of := &ended{id, chain, conversation, now, time.Now().Add(Timeout)}
		e.late[id] = of
		e.waiting = append(e.waiting, of)
	} else {
		e.Client.Forget(id)
	}
	credit := worth(e.Cache.Lifetime())
	e.Cache.Free(chain, conversation, now, credit)
	if e.guard != nil {
		e.Cache.Trust(e.guard.Observe(e.shadows.Observe(chain, conversation, now, worth)))
	}
	return credit
}

// Step lays answers that came after their request's end on the blocks that are still free. Call it once per scheduler step: it
// looks at what has come or is over, not at all that waits.
func (e *Engine) Step() int {
	laid := 0
	for _, id := range e.Client.late() {
		of := e.late[id]
		if of == nil {
			continue
		}
		if answer, answered, _ := e.Client.Take(id); answered {
			e.Cache.Lay(of.chain, of.conversation, of.tLast+answer.worth(e.Cache.Lifetime()))
			if e.guard != nil {
				e.shadows.Lay(of.chain, of.conversation, of.tLast, answer.worth)
			}
			laid++
		}
		delete(e.late, id)
	}
	for now := time.Now(); len(e.waiting) > 0 && now.After(e.waiting[0].until); e.waiting = e.waiting[1:] {
		if of := e.waiting[0]; e.late[of.id] == of {
			delete(e.late, of.id)
			e.Client.Forget(of.id)
		}
	}
	return laid
}

// The credit at a lifetime; 0 where the answer is none.
func (a Answer) worth(lifetime float64) float64 {
	credit, err := a.Grid.At(a.Table, lifetime)
	if err != nil {
		return 0
	}
	return credit
}

func none(float64) float64 { return 0 }
