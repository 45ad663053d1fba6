package lpc

import (
	"container/heap"
	"math"
)

// A free block: nobody uses it, and its content may be used again.
type block struct {
	hash         string
	conversation string // whose it is; "" once it is shared
	tLast, key   float64
	depth        int    // from the root of its chain: the tail goes first
	freed        uint64 // when, in order
	users        int    // requests that hold it now
	place        int    // in the heap; -1: it is in use
}

// Cache orders blocks by their keys, or, until it is told to trust them, by their last use. Not safe for concurrent use: it belongs to the engine's scheduler.
//
// A block's key is the highest of the conversations that hold it, and of each the latest: a later turn of the same
// conversation replaces its own, another conversation only raises it.
type Cache struct {
	lifetime *Lifetime
	blocks   map[string]*block
	free     order
	freed    uint64
}

// NewCache makes the order of a cache of so many blocks.
func NewCache(capacity int) *Cache {
	return &Cache{lifetime: NewLifetime(capacity), blocks: map[string]*block{}}
}

// Trust puts a rule into force: the keys (true), or least recent use, as at the start. Where it changes, all free blocks are
// sorted anew.
func (c *Cache) Trust(keys bool) {
	if keys != c.free.byKey {
		c.free.byKey = keys
		heap.Init(&c.free)
	}
}

// Lifetime is how long blocks of average conversations live here, seconds.
func (c *Cache) Lifetime() float64 { return c.lifetime.Seconds() }

// Len is how many blocks are known, in use or free.
func (c *Cache) Len() int { return len(c.blocks) }

// Use says that a request uses the blocks of a chain, root first: they cannot be evicted until they are freed. It returns how
// many of the first of them were in the cache.
func (c *Cache) Use(chain []string) int {
	hits, whole := 0, true
	for depth, hash := range chain {
		b := c.blocks[hash]
		if b == nil {
			whole = false
			b = &block{hash: hash, depth: depth, tLast: math.Inf(-1), key: math.Inf(-1), place: -1}
			c.blocks[hash] = b
		} else if whole {
			hits++
		}
		if b.place >= 0 {
			heap.Remove(&c.free, b.place)
		}
		b.users++
	}
	return hits
}

// Free says that a request of a conversation has ended that used this chain. tLast: seconds since the epoch. The blocks that no
// other request uses may be evicted from now on.
func (c *Cache) Free(chain []string, conversation string, tLast, credit float64) {
	key := tLast + credit
	if math.IsNaN(key) {
		key = tLast
	}
	for _, hash := range chain {
		b := c.blocks[hash]
		if b == nil || b.users == 0 {
			continue
		}
		b.users--
		b.pool(conversation, key)
		b.tLast = math.Max(b.tLast, tLast)
		if b.users == 0 {
			c.freed++
			b.freed = c.freed
			heap.Push(&c.free, b)
		}
	}
}

// Lay gives the blocks of a request that has ended, as far as they are still free, the key of an answer that came late.
func (c *Cache) Lay(chain []string, conversation string, key float64) {
	for _, hash := range chain {
		if b := c.blocks[hash]; b != nil && b.place >= 0 && !math.IsNaN(key) {
			b.pool(conversation, key)
			heap.Fix(&c.free, b.place)
		}
	}
}

// Evict forgets the block with the smallest key and returns its hash; false: no block is free.
func (c *Cache) Evict(now float64) (string, bool) {
	if c.free.Len() == 0 {
		return "", false
	}
	b := heap.Pop(&c.free).(*block)
	delete(c.blocks, b.hash)
	c.lifetime.Evicted(c.free.of(b), now)
	return b.hash, true
}

func (b *block) pool(conversation string, key float64) {
	switch {
	case math.IsInf(b.key, -1) || (b.conversation != "" && b.conversation == conversation):
		b.conversation, b.key = conversation, key
	default:
		b.conversation, b.key = "", math.Max(b.key, key)
	}
}

// A heap by key or by last use; of equal ones the deepest block goes first, then the one freed first.
type order struct {
	blocks []*block
	byKey  bool
}

func (o *order) of(b *block) float64 {
	if o.byKey {
		return b.key
	}
	return b.tLast
}
func (o *order) Len() int { return len(o.blocks) }
func (o *order) Less(i, j int) bool {
	a, b := o.blocks[i], o.blocks[j]
	if x, y := o.of(a), o.of(b); x != y {
		return x < y
	}
	if a.depth != b.depth {
		return a.depth > b.depth
	}
	return a.freed < b.freed
}
func (o *order) Swap(i, j int) {
	o.blocks[i], o.blocks[j] = o.blocks[j], o.blocks[i]
	o.blocks[i].place, o.blocks[j].place = i, j
}
func (o *order) Push(x any) {
	b := x.(*block)
	b.place = len(o.blocks)
	o.blocks = append(o.blocks, b)
}
func (o *order) Pop() any {
	last := len(o.blocks) - 1
	b := o.blocks[last]
	o.blocks[last] = nil
	o.blocks = o.blocks[:last]
	b.place = -1
	return b
}
