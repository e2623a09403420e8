(() => {
  const every = 5000, button = document.getElementById('live');
  let on = true, busy = false;
  const say = () => { button.textContent = on ? 'Pause refresh' : 'Refresh again'; };
  const path = (one) => one && one.closest('main') ? (one.id ? '#' + CSS.escape(one.id) : one.getAttribute('href') ? 'a[href=' + JSON.stringify(one.getAttribute('href')) + ']' : '') : '';
  const again = async () => {
    if (!on || busy || document.hidden || String(getSelection())) return;
    busy = true;
    try {
      const answer = await fetch(location.href);
      if (!answer.ok || !on) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main');
      const old = document.querySelector('main');
      if (!fresh || !old) return;
      const focus = path(document.activeElement);
      const scrolled = [...old.querySelectorAll('.scroll')].map((one) => one.scrollLeft);
      for (const one of old.querySelectorAll('details[id]')) {
        const same = fresh.querySelector('#' + CSS.escape(one.id));
        if (same) same.open = one.open;
      }
      old.replaceWith(document.adoptNode(fresh));
      document.querySelectorAll('main .scroll').forEach((one, number) => { one.scrollLeft = scrolled[number] || 0; });
      if (focus) document.querySelector('main ' + focus)?.focus({ preventScroll: true });
    } catch { /* the sidecar is away: what is shown has its time beside it */ } finally { busy = false; }
  };
  button.hidden = false;
  button.addEventListener('click', () => { on = !on; say(); again(); });
  say();
  setInterval(again, every);
})();
