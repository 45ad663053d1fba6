package lpc

import "container/list"

// A line of the book: a question, and its answer once that is there.
type line struct {
	id       string
	cancel   func() // ends the call
	answer   Answer
	answered bool
}

// A book remembers questions and answers, at most so many together: over it the oldest goes, so that what an engine never comes
// back for takes no place from what it asks next. Not safe for concurrent use.
type book struct {
	most  int
	lines map[string]*list.Element
	order list.List // of *line, by when they were asked
}

func newBook(most int) *book {
	return &book{most: most, lines: map[string]*list.Element{}}
}

// ask enters a question, in place of an earlier one of its id.
func (b *book) ask(id string, cancel func()) *line {
	b.forget(id)
	for len(b.lines) >= b.most {
		b.forget(b.order.Front().Value.(*line).id)
	}
	asked := &line{id: id, cancel: cancel}
	b.lines[id] = b.order.PushBack(asked)
	return asked
}

// answer enters an answer. Nothing is kept of a question that was forgotten.
func (b *book) answer(asked *line, answer Answer) {
	asked.answer, asked.answered = answer, true
}

// fail forgets a question that gets no answer.
func (b *book) fail(asked *line) {
	if element := b.lines[asked.id]; element != nil && element.Value.(*line) == asked {
		b.forget(asked.id)
	}
}

// take returns an answer and forgets the question; false: it is not there.
func (b *book) take(id string) (Answer, bool) {
	element := b.lines[id]
	if element == nil {
		return Answer{}, false
	}
	b.forget(id)
	found := element.Value.(*line)
	return found.answer, found.answered
}

func (b *book) forget(id string) {
	if element := b.lines[id]; element != nil {
		b.order.Remove(element)
		delete(b.lines, id)
		element.Value.(*line).cancel()
	}
}
