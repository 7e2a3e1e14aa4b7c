"use strict";
// Shows a walk one round at a time. Without this script all rounds stand below each other.
(() => {
  const viewers = [...document.querySelectorAll(".viewer:has(.round)")].map(setUp);

  function setUp(root) {
    const find = (selector) => [...root.querySelectorAll(selector)];
    const rounds = find(".round"), jumps = find(".strip button");
    const [status] = find("[role=status]"), [previous, next] = find(".controls button");
    let current = 0;

    // What each round wrote, from its tokens that stand.
    const written = rounds.map((round) =>
      [...round.querySelectorAll("[data-text]")].map((token) => token.dataset.text).join(""));

    function show(number) {
      const from = rounds[current];
      current = Math.max(0, Math.min(rounds.length - 1, number));
      const to = rounds[current];
      const tokens = [...from.querySelectorAll(".token")];
      const focused = tokens.indexOf(document.activeElement);
      rounds.forEach((round) => { round.hidden = round !== to; });
      jumps.forEach((jump, i) => {
        if (i === current) jump.setAttribute("aria-current", "step");
        else jump.removeAttribute("aria-current");
        jump.tabIndex = i === current ? 0 : -1;
      });
      status.textContent = `Round ${current + 1} of ${rounds.length}`;
      previous.setAttribute("aria-disabled", current === 0);
      next.setAttribute("aria-disabled", current === rounds.length - 1);
      tell(to);
      follow(jumps[current]);
      if (focused >= 0 && from !== to) {
        const there = [...to.querySelectorAll(".token")];
        there[Math.min(focused, there.length - 1)].focus({ preventScroll: true });
      }
    }

    // The output before the round, and what the round adds.
    function tell(round) {
      const line = round.querySelector(".sofar"), added = document.createElement("mark");
      const label = document.createElement("b");
      label.textContent = "Text so far: ";
      const before = written.slice(0, current).join("");
      added.textContent = before ? written[current] : written[current].trimStart();
      line.replaceChildren(label, before.trimStart(), added);
    }

    // Scrolls the list of rounds, and nothing else.
    function follow(jump) {
      const list = jump.closest(".strip"), top = jump.offsetTop - list.offsetTop;
      if (top < list.scrollTop || top + jump.offsetHeight > list.scrollTop + list.clientHeight) {
        list.scrollTop = top - list.clientHeight / 2;
      }
    }

    const step = {
      ArrowLeft: () => show(current - 1),
      ArrowRight: () => show(current + 1),
      Home: () => show(0),
      End: () => show(rounds.length - 1),
    };
    previous.addEventListener("click", step.ArrowLeft);
    next.addEventListener("click", step.ArrowRight);
    jumps.forEach((jump, i) => jump.addEventListener("click", () => show(i)));
    root.classList.add("stepping");
    find("[data-scripted]").forEach((part) => { part.hidden = false; });
    show(0);
    return { root, step, focusJump: () => jumps[current].focus() };
  }

  const onScreen = ({ root }) => {
    const { top, bottom } = root.getBoundingClientRect();
    return bottom > 0 && top < window.innerHeight;
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const active = document.activeElement;
    if (event.key === "Escape" && active.classList.contains("token")) return active.blur();
    // Where nothing has the focus, the arrows move the first walk in sight; Home and End the page.
    const idle = active === document.body && event.key.startsWith("Arrow");
    const viewer = viewers.find(({ root }) => root.contains(active)) || (idle && viewers.find(onScreen));
    if (!viewer || !(event.key in viewer.step)) return;
    viewer.step[event.key]();
    if (active.closest(".strip")) viewer.focusJump();
    event.preventDefault();
  });
})();
