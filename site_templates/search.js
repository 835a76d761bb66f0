// Search: Pagefind's parts are loaded at the first key, never with another page. Arrow keys walk through the results.
(function () {
  "use strict";
  var root = document.currentScript.dataset.root;
  var box = document.getElementById("words"), list = document.querySelector(".results"), found = document.querySelector(".found");
  var SHOWN = 12;
  var library = null, latest = 0, timer = null;

  function load() {
    // The address of the page, not of this script: that is what import() would take a relative one from.
    library = library || import(new URL(root + "pagefind/pagefind.js", location.href).href).then(function (module) {
      return module.options({ excerptLength: 30 }).then(function () { return module; });
    }).catch(function (error) { library = null; throw error; });
    return library;
  }

  function make(tag, name, text) {
    var node = document.createElement(tag);
    if (name) node.className = name;
    if (text) node.textContent = text;
    return node;
  }

  // The sentence around a place that matches, as [first word, word after the last].
  function around(words, place) {
    var start = place, end = place;
    while (start > 0 && place - start < 40 && !/[.!?:]["”)]?$/.test(words[start - 1])) start -= 1;
    while (end < words.length - 1 && end - place < 40 && !/[.!?]["”)]?$/.test(words[end])) end += 1;
    return [start, end + 1];
  }
  // The first sentence of a part that is more than its heading again, its matching words marked.
  function sentence(words, part) {
    var hits = new Set(part.locations), line = make("p", "sentence");
    var all = part.locations.map(function (place) { return around(words, place); });
    var range = all.filter(function (one) { return words.slice(one[0], one[1]).join(" ").replace(/\.$/, "") !== part.title; })[0] || all[0];
    for (var at = range[0]; at < range[1]; at += 1) {
      line.append(hits.has(at) ? make("mark", "", words[at]) : words[at], " ");
    }
    return line;
  }

  function item(data) {
    var words = data.content.split(/[\r\n\s]+/g), node = make("li"), link = make("a", "", data.meta.title);
    link.href = data.url;
    var heading = make("h2");
    heading.append(link);
    node.append(heading, make("p", "small", data.meta.place || ""));
    var parts = data.sub_results.filter(function (part) { return part.locations.length; });
    parts.sort(function (a, b) { return b.locations.length - a.locations.length; });
    parts.slice(0, 2).forEach(function (part) {
      var line = sentence(words, part);
      if (part.url !== data.url) {
        var deeper = make("a", "", part.title);
        deeper.href = part.url;
        line.prepend(deeper, ": ");
      }
      node.append(line);
    });
    return node;
  }

  function search() {
    var words = box.value.trim(), mine = latest += 1;
    try { history.replaceState(null, "", words ? "?q=" + encodeURIComponent(words) : location.pathname); } catch (refused) { /* a page from disk */ }
    if (!words) { list.textContent = ""; found.textContent = ""; return; }
    load().then(function (module) { return module.search(words); }).then(function (answer) {
      return Promise.all(answer.results.slice(0, SHOWN).map(function (result) { return result.data(); })).then(function (all) {
        if (mine !== latest) return;
        list.textContent = "";
        all.forEach(function (data) { list.append(item(data)); });
        var count = answer.results.length;
        found.textContent = count ? count + (count === 1 ? " page" : " pages") + (count > SHOWN ? ", the best " + SHOWN + " shown" : "") : "Nothing found for “" + words + "”.";
      });
    }).catch(function () {
      if (mine !== latest) return;
      found.textContent = location.protocol === "file:"
        ? "A browser does not search pages that were opened from disk. Serve them: python -m http.server --directory site"
        : "The search could not be loaded. Try again.";
    });
  }

  box.form.addEventListener("submit", function (event) { event.preventDefault(); search(); });
  box.addEventListener("input", function () { clearTimeout(timer); timer = setTimeout(search, 150); });
  document.addEventListener("keydown", function (event) {
    var stops = [box].concat(Array.from(list.querySelectorAll("a"))), at = stops.indexOf(document.activeElement);
    if (event.key === "Escape" && at > 0) box.focus();
    else if (event.key === "ArrowDown" && at >= 0 && at < stops.length - 1) stops[at + 1].focus();
    else if (event.key === "ArrowUp" && at > 0) stops[at - 1].focus();
    else return;
    event.preventDefault();
  });
  box.value = new URLSearchParams(location.search).get("q") || "";
  if (box.value) search();
})();
